"""Bars of the pictures: as high as what they stand for, and nothing where there is nothing (GW-12)."""

import pytest

from apps.usage.charts import HEIGHT, STEP, build_chart

pytestmark = pytest.mark.req("GW-12", "UI-03")
KINDS = {"in": "in", "out": "out"}


def test_the_highest_bar_fills_the_picture_and_parts_stand_on_each_other() -> None:
    chart = build_chart("t", KINDS, [("a", "A", {"in": 30, "out": 10}), ("b", "B", {"in": 0, "out": 20})])
    assert (chart.top, chart.width, chart.first, chart.last) == (40, 2 * STEP, "a", "b")
    first, second = chart.bars
    assert [(p.kind, p.y, p.height) for p in first.parts] == [
        ("in", "25.00", "75.00"),
        ("out", "0.00", "25.00"),
    ]
    assert [(p.kind, float(p.y) + float(p.height)) for p in second.parts] == [("out", HEIGHT)]
    assert [bar.x for bar in chart.bars] == ["1", "11"]


@pytest.mark.parametrize("points", [[], [("a", "A", {"in": 0, "out": 0})]])
def test_nothing_has_no_height(points: list[tuple[str, str, dict[str, int]]]) -> None:
    chart = build_chart("t", KINDS, points)
    assert chart.top == 0
    assert not any(bar.parts for bar in chart.bars)
