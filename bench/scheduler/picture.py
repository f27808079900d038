"""Lines over two logarithmic axes, as an SVG: how long something takes as something grows. Only draws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 74, 150, 60, 54
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")

Points = Sequence[tuple[float, float]]


def draw(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> str:
    """The picture's text. Points at or below zero can not stand on such axes and are left out."""
    shown = {name: [point for point in points if min(point) > 0] for name, points in lines.items()}
    xs = [x for points in shown.values() for x, _ in points]
    ys = [y for points in shown.values() for _, y in points]
    if not xs:
        raise ValueError("there is nothing to draw")
    across = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT)
    up = _Axis(
        10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys))), HEIGHT - BOTTOM, TOP
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 26, title, size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_name, anchor="middle"),
        _text(14, TOP - 10, y_name),
    ]
    for y in _tens(up.low, up.high):
        parts += [
            _line(LEFT, up.at(y), WIDTH - RIGHT, up.at(y)),
            _text(LEFT - 8, up.at(y) + 4, f"{y:,.10g}", "end"),
        ]
    for x in sorted(set(xs)):
        parts += [
            _line(across.at(x), TOP, across.at(x), HEIGHT - BOTTOM),
            _text(across.at(x), HEIGHT - BOTTOM + 18, f"{x:,.10g}", "middle"),
        ]
    for colour, (name, points) in zip(COLOURS * len(shown), shown.items(), strict=False):
        if not points:
            continue
        spots = [(across.at(x), up.at(y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        parts.append(_text(spots[-1][0] + 10, spots[-1][1] + 4, name, fill=colour))
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """From values to places along a line, by their logarithm."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low * 10
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self._start + share * (self._end - self._start)


def _tens(low: float, high: float) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def _text(
    x: float, y: float, text: str, anchor: str = "start", *, size: int = 12, fill: str = "#24292f"
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"'
    return f"<text {place}>{escape(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d7de"/>'
