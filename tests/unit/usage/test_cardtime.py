"""Card time by pure rules: what counts, as what, on which day (GW-18)."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.states import State
from apps.usage.policy.cardtime import Holding, Kind, Share, Span, count

pytestmark = pytest.mark.req("GW-18")
S = State
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DAY = date(2026, 3, 1)


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def held(minutes: float, *moves: tuple[float, State], shares=(Share(100),)) -> Holding:
    return Holding(Span(NOON, at(minutes)), tuple(shares), [(at(minute), state) for minute, state in moves])


def minutes(holding: Holding) -> dict[Kind, float]:
    return {kind: ms / 60_000 for (_, kind), ms in count(holding).items()}


UP = (0, S.SCHEDULING), (2, S.RUNNING)


@pytest.mark.parametrize(
    ("holding", "expected"),
    [
        pytest.param(held(10), {Kind.RUNNING: 10}, id="placed, nothing heard yet"),
        pytest.param(held(10, *UP), {Kind.RUNNING: 10}, id="loading counts"),
        pytest.param(
            held(10, *UP, shares=[Share(100), Share(40)]), {Kind.RUNNING: 14}, id="cards and percent"
        ),
        pytest.param(held(10, *UP, shares=[]), {}, id="no card"),
        pytest.param(
            held(10, *UP, (4, S.DRAINING), (5, S.SLEEPING), (8, S.WAKING), (9, S.RUNNING)),
            {Kind.RUNNING: 7, Kind.SLEEPING: 3},
            id="asleep",
        ),
        pytest.param(
            held(
                10,
                *UP,
                (4, S.SLEEPING),
                shares=[Share(100, (Span(at(5), at(7)), Span(at(9), at(99)))), Share(100)],
            ),
            {Kind.RUNNING: 8, Kind.SLEEPING: 3 + 6, Kind.LENT: 3},
            id="one of two cards lent, twice",
        ),
        pytest.param(
            held(10, *UP, (4, S.STOPPING)), {Kind.RUNNING: 10}, id="until the node confirmed the end"
        ),
        pytest.param(held(10, *UP, (4, S.FAILED)), {Kind.RUNNING: 4}, id="not after it failed"),
        pytest.param(held(10, *UP, (4, S.PENDING)), {Kind.RUNNING: 4}, id="not after it was moved away"),
        pytest.param(held(3, *UP, (4, S.SLEEPING)), {Kind.RUNNING: 3}, id="nothing after its release"),
    ],
)
def test_what_counts_as_what(holding, expected):
    assert minutes(holding) == expected


def test_days_are_those_of_utc_and_earlier_ones_may_be_left_out():
    holding = held(24 * 60, *UP)
    assert count(holding) == {
        (DAY, Kind.RUNNING): 12 * 3_600_000,
        (date(2026, 3, 2), Kind.RUNNING): 12 * 3_600_000,
    }
    assert list(count(holding, first_day=date(2026, 3, 2))) == [(date(2026, 3, 2), Kind.RUNNING)]


def test_parts_are_together_as_long_as_the_whole():
    """By a midnight and by moves, none of them at a whole millisecond."""
    us, begin = timedelta(microseconds=1), at(11 * 60 + 30) + timedelta(microseconds=500)
    moves = [
        (begin + number * 7_000_333 * us, S.SLEEPING if number % 2 else S.RUNNING) for number in range(500)
    ]
    holding = Holding(Span(begin, begin + timedelta(hours=1)), (Share(100),), moves)
    found = count(holding)
    assert sum(found.values()) == 3_600_000
    assert len({day for day, _ in found}) == 2 and len({kind for _, kind in found}) == 2


steps = st.lists(st.tuples(st.floats(0, 5000), st.sampled_from(sorted(State))), max_size=12)
loans = st.lists(st.floats(0, 5000), max_size=6).map(sorted)


@given(steps, loans, st.integers(1, 100), st.floats(0, 5000), st.floats(0, 5000))
def test_time_is_never_more_than_the_hold_and_counting_in_parts_gives_the_same(
    steps, bounds, percent, length, cut
):
    moves = sorted(steps, key=lambda step: step[0])
    lent = tuple(Span(at(a), at(b)) for a, b in zip(bounds[::2], bounds[1::2], strict=False))
    whole = held(length, *moves, shares=[Share(percent, lent)])
    found = count(whole)
    assert sum(found.values()) <= length * 60_000 * percent / 100 + 1
    assert all(value >= 0 for value in found.values())

    cut = min(cut, length)
    early = count(held(cut, *moves, shares=[Share(percent, lent)]))
    day = at(cut).date()
    later = count(whole, first_day=day)
    assert {**{key: ms for key, ms in early.items() if key[0] < day}, **later} == dict(found)
