"""What `make bench-scheduler` draws and says of measured figures (nothing is measured here)."""

from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.scheduler.__main__ import growth_picture, show_ticks
from bench.scheduler.picture import draw

SVG = "{http://www.w3.org/2000/svg}"


def row(nodes: int, ms: float) -> dict[str, Any]:
    phases = {name: ms / 5 for name in ("read", "decide", "commit", "reasons", "rest")}
    tick = {"ms": ms, "cpu_ms": ms / 2, "phases_ms": phases, "phases_cpu_ms": phases}
    return {
        "nodes": nodes,
        "waiting": 2 * nodes,
        "placed": nodes,
        "tick": tick,
        "nothing_fits": tick,
        "idle": tick,
    }


def test_more_stands_higher_and_further_to_the_right() -> None:
    root = ElementTree.fromstring(draw("t", "nodes", "ms", {"one": [(100, 10), (1000, 100), (10_000, 1000)]}))
    spots = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in root.iter(f"{SVG}circle")]

    assert len(spots) == 3
    assert spots == sorted(spots) and [y for _, y in spots] == sorted((y for _, y in spots), reverse=True)
    steps = [(b[0] - a[0], a[1] - b[1]) for a, b in pairwise(spots)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)  # tenfold is equally far each time


def test_a_picture_says_its_names_and_leaves_out_what_no_such_axis_can_show() -> None:
    text = draw("a < b", "nodes", "ms", {"idle & co": [(100, 0.0), (200, 5.0)], "none": [(100, -1)]})
    said = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]

    assert {"a < b", "nodes", "ms", "idle & co"} <= set(said) and "none" not in said
    assert text.count("<circle") == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        draw("t", "x", "y", {"none": [(0, 1)]})


def test_growth_has_a_line_for_the_tick_and_each_phase() -> None:
    root = ElementTree.fromstring(growth_picture([row(100, 50), row(1000, 500)]))

    assert len(list(root.iter(f"{SVG}polyline"))) == 5


def test_the_table_has_a_row_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    show_ticks("Growth", [row(100, 50), row(5000, 2500)])
    lines = capsys.readouterr().out.splitlines()

    assert lines[-1].startswith("| 5,000 | 10,000 | 5,000 | 2,500 (1,250) | 500 (500) |")
    assert {line.count("|") for line in lines if line.startswith("|")} == {12}
