"""Bars of a picture: where each begins, how high it is. Pure; a template draws them.

Numbers are texts with a point, as pictures want them, whatever the reader's language.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STEP, HEIGHT = 10, 100


@dataclass(frozen=True)
class Part:
    kind: str
    y: str
    height: str


@dataclass(frozen=True)
class Bar:
    title: str
    x: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Chart:
    """`kinds`: the word of each kind of part. `top`: what the whole height stands for; 0 = nothing to draw.
    `first` and `last`: labels of the outermost bars."""

    title: str
    kinds: Mapping[str, str]
    bars: tuple[Bar, ...]
    width: int
    top: int
    first: str
    last: str


def build_chart(
    title: str, kinds: Mapping[str, str], points: Sequence[tuple[str, str, Mapping[str, int]]]
) -> Chart:
    """One bar for each point (label, title, value of each kind), its kinds one upon the other."""
    top = max((sum(values.values()) for _, _, values in points), default=0)
    bars = tuple(
        Bar(told, str(number * STEP + 1), tuple(_stack(values, top)))
        for number, (_, told, values) in enumerate(points)
    )
    labels = [label for label, _, _ in points] or [""]
    return Chart(title, kinds, bars, len(points) * STEP, top, labels[0], labels[-1])


def _stack(values: Mapping[str, int], top: int) -> list[Part]:
    parts, below = [], 0.0
    for kind, value in values.items():
        if value > 0:
            height = value / top * HEIGHT
            below += height
            parts.append(Part(kind, f"{HEIGHT - below:.2f}", f"{height:.2f}"))
    return parts
