"""Which of a pair stays, and whose turn it is (LIFE-09)."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from agent.contract.states import Phase, State
from apps.upkeep.policy.pairs import Choice, Side, judge
from apps.upkeep.policy.turns import Serving, in_turn

pytestmark = pytest.mark.req("LIFE-09")

READY = Side(State.RUNNING, Phase.READY, wanted=True)
STARTING = Side(State.SCHEDULING, Phase.LOADING, wanted=True)
WAITING = Side(State.PENDING, Phase.NONE, wanted=True)
FAILED = Side(State.FAILED, Phase.LEAVING, wanted=True)
SPENT = Side(State.FAILED, Phase.NONE, wanted=True, spent_for_s=300)
UNWANTED = Side(State.RUNNING, Phase.READY, wanted=False)
SINCE = datetime(2026, 3, 1, tzinfo=UTC)


def step(old: Side, new: Side, *, emptying: bool = True, forced: bool = False) -> Choice:
    return judge(old, new, emptying=emptying, forced=forced, retry_s=300)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (READY, WAITING, Choice.WAIT),
        (READY, STARTING, Choice.WAIT),
        (READY, FAILED, Choice.WAIT),  # rebuilt by recovery
        (READY, READY, Choice.KEEP_NEW),
        (READY, SPENT, Choice.KEEP_OLD),
        (UNWANTED, READY, Choice.KEEP_OLD),
        (READY, UNWANTED, Choice.KEEP_OLD),
    ],
)
def test_while_a_node_is_emptied_the_old_one_serves_until_the_new_one_is_ready(
    old: Side, new: Side, expected: Choice
) -> None:
    assert step(old, new) is expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (READY, STARTING, Choice.KEEP_OLD),
        (READY, READY, Choice.KEEP_OLD),
        (WAITING, STARTING, Choice.KEEP_NEW),
        (WAITING, WAITING, Choice.KEEP_OLD),
        (FAILED, READY, Choice.KEEP_NEW),
        (STARTING, READY, Choice.KEEP_NEW),
    ],
)
def test_when_a_drain_is_cancelled_the_readier_one_stays(old: Side, new: Side, expected: Choice) -> None:
    assert step(old, new, emptying=False) is expected


def test_force_takes_what_has_a_place_and_gives_up_what_has_none() -> None:
    assert step(READY, STARTING, forced=True) is Choice.KEEP_NEW
    assert step(READY, WAITING, forced=True) is Choice.KEEP_OLD


def test_without_force_nothing_that_is_ready_ever_leaves_for_something_less_ready() -> None:
    sides = [READY, STARTING, WAITING, FAILED, SPENT]
    for old, new, emptying in product(sides, sides, [True, False]):
        kept = {Choice.KEEP_OLD: old, Choice.KEEP_NEW: new}.get(step(old, new, emptying=emptying))
        if kept is not None:
            assert kept.readiness == max(old.readiness, new.readiness)


def serving(task: int, group: int, tenant: int, minutes: int = 0, **more: bool | int) -> Serving:
    since = SINCE + timedelta(minutes=minutes)
    priority, forced = int(more.get("priority", 0)), bool(more.get("forced"))
    return Serving(task, group, tenant, priority=priority, since=since, forced=forced)


def test_one_replica_a_service_and_each_tenant_in_turn() -> None:
    there = [serving(1, 10, 1), serving(2, 10, 1), serving(3, 11, 1), serving(4, 12, 1), serving(5, 20, 2)]
    turn, later = in_turn(there, {})
    assert [one.task_id for one in turn] == [1, 5, 3, 4]
    assert [one.task_id for one in later] == [2]


def test_a_busy_service_waits_but_not_where_it_is_forced() -> None:
    turn, later = in_turn([serving(1, 10, 1), serving(2, 11, 1, forced=True)], {10: 1, 11: 1})
    assert ([one.task_id for one in turn], [one.task_id for one in later]) == ([2], [1])


def test_higher_priority_goes_first() -> None:
    turn, _ = in_turn([serving(1, 10, 1), serving(2, 11, 2, minutes=5, priority=9)], {})
    assert [one.task_id for one in turn] == [2, 1]
