"""What our gateway is beside others in one run: ratios, window by window, and what they have to be.

A machine that others use slows windows down one by one, so each window of ours is set against the other's of
the same round, and the median of that is taken. No reply in a window is no figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Windows = Mapping[tuple[str, str], Sequence[Mapping[str, float]]]

# name, load, whose, what, at least or at most
MUSTS: tuple[tuple[str, str, str, str, float], ...] = (
    ("plain:450 req/s to vllm-router", "plain:450", "vllm-router", "rps", 1.0),
    ("plain:450 req/s to sglang-router", "plain:450", "sglang-router", "rps", 1.0),
    ("stream:450 req/s to vllm-router", "stream:450", "vllm-router", "rps", 5.0),
    ("stream:450 req/s to sglang-router", "stream:450", "sglang-router", "rps", 5.0),
    ("plain:450 req/s to litellm", "plain:450", "litellm", "rps", 50.0),
    ("stream:50 req/s to litellm", "stream:50", "litellm", "rps", 200.0),
    ("plain:50 CPU to nginx", "plain:50", "nginx", "cpu_per_1k", 4.0),
    ("plain:450 CPU to nginx", "plain:450", "nginx", "cpu_per_1k", 4.0),
    ("stream:50 CPU to nginx", "stream:50", "nginx", "cpu_per_1k", 4.0),
    ("stream:450 CPU to nginx", "stream:450", "nginx", "cpu_per_1k", 4.0),
    ("hidden:50 CPU to nginx", "hidden:50", "nginx", "cpu_per_1k", 4.0),
    ("plain:1 p50 ms over direct", "plain:1", "direct", "p50", 0.25),
    ("slow:450 p50 ms over direct", "slow:450", "direct", "p50", 40.0),
)


def compare(windows: Windows) -> dict[str, dict[str, Any]]:
    """By name: the figure, the bound and whether it is kept. What was not measured is left out; a figure of
    None says that one side gave no reply in any window."""
    found: dict[str, dict[str, Any]] = {}
    for name, load, other, what, bound in MUSTS:
        ours, theirs = windows.get((load, "ours")), windows.get((load, other))
        if not ours or not theirs:
            continue
        figures = [
            figure
            for mine, its in zip(ours, theirs, strict=False)
            if (figure := _set_against(mine, its, what)) is not None
        ]
        if not figures:
            found[name] = {"figure": None, "bound": bound, "kept": None}
            continue
        figure = statistics.median(figures)
        kept = figure >= bound if what == "rps" else figure <= bound
        found[name] = {"figure": round(figure, 3), "bound": bound, "kept": kept}
    return found


def _set_against(mine: Mapping[str, float], its: Mapping[str, float], what: str) -> float | None:
    if not mine["ok"] or not its["ok"]:
        return None
    if what == "p50":
        return mine[what] - its[what]
    return mine[what] / its[what] if its[what] else None
