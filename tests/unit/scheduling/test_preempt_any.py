"""What holds for every preemption, whatever the fleet looks like: by trying every other set of victims."""

from datetime import timedelta
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.contract.states import TaskType
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.registry import Refused
from tests.examples import examples
from tests.unit.scheduling.worlds import NOW, card, hold, node, task, world

pytestmark = pytest.mark.req("SCHED-11")

TENANTS = st.integers(1, 2)


@st.composite
def holders(draw, numbers):
    """A live task: what its hold looks like on each of its cards."""
    return hold(
        draw(TENANTS),
        draw(st.sampled_from([None, 20, 40])),
        inference=draw(st.sampled_from([True, True, True, False])),
        task_id=next(numbers),
        priority=draw(st.integers(0, 3)),
        preemptible=draw(st.sampled_from([True, True, True, False])),
        since=NOW - timedelta(seconds=draw(st.integers(0, 5))),
        sleeping=draw(st.sampled_from([False, False, False, True])),
        leaving=draw(st.sampled_from([False, False, False, False, True])),
    )


@st.composite
def fleets(draw):
    """Up to three nodes of up to three cards; some tasks hold two cards of a node, most cards are full."""
    numbers, nodes = iter(range(100, 200)), []
    for number in range(1, draw(st.integers(1, 3)) + 1):
        cards = [[] for _ in range(draw(st.integers(1, 3)))]
        if len(cards) > 1 and draw(st.booleans()):
            wide = replace(draw(holders(numbers)), percent=None)
            cards[0].append(wide)
            cards[1].append(wide)
        for holds in cards:
            while len(holds) < 3 and all(one.percent for one in holds) and draw(st.integers(0, 3)):
                holds.append(draw(holders(numbers)))
        nodes.append(
            node(number, *(card(10 * number + k, *holds) for k, holds in enumerate(cards)), host_ipc=False)
        )
    return nodes


@st.composite
def wishes(draw, number=1):
    return task(
        number,
        tenant_id=draw(TENANTS),
        priority=draw(st.integers(0, 4)),
        gpu_required=draw(st.sampled_from([1, 1, 2, 3])),
        percent=draw(st.sampled_from([None, 30, 60])),
        task_type=draw(st.sampled_from([TaskType.INFERENCE, TaskType.INFERENCE, TaskType.TRAINING])),
        memory_mb=draw(st.sampled_from([None, None, 10_000, 60_000])),
        engine="llamacpp",
    )


SHARED = st.sampled_from([{}, {1: frozenset({2}), 2: frozenset({1})}])


def holds_of(nodes):
    """By the task's row id, any of its holds."""
    return {one.task_id: one for place in nodes for found in place.cards for one in found.holds}


def may_go(snapshot, wish, one):
    """The rule, once more: of lower priority and willing, no sleeper of a stranger; or on its way already."""
    if one.priority >= wish.priority:
        return False
    protected = one.sleeping and not snapshot.may_share(wish.tenant_id, one.tenant_id)
    return one.leaving or (one.preemptible and not protected)


def fits_without(snapshot, wish, gone):
    """Whether some node would take the task if these were gone."""
    board = Board(snapshot)
    return any(
        not isinstance(board.judge(wish, place, gone), Refused) for place in range(len(snapshot.nodes))
    )


@given(fleets(), wishes(), SHARED)
@settings(max_examples=examples(300))
def test_victims_are_allowed_fewest_and_enough(nodes, wish, shared):
    snapshot = world([wish], nodes, shared=shared)
    plan = decide(snapshot, NOW)
    every = holds_of(nodes)
    leaving = {number for number, one in every.items() if one.leaving and may_go(snapshot, wish, one)}
    willing = sorted(
        number for number, one in every.items() if may_go(snapshot, wish, one) and number not in leaving
    )
    enough = [
        some
        for size in range(len(willing) + 1)
        for some in combinations(willing, size)
        if fits_without(snapshot, wish, {*some, *leaving})
    ]

    if plan.placements:
        assert not plan.preemptions
        assert fits_without(snapshot, wish, set())
    elif not enough:
        assert not plan.preemptions
        assert 1 in plan.refusals
    else:
        (made,) = plan.preemptions
        assert not plan.refusals
        assert made.victims in enough
        assert len(made.victims) == len(enough[0])
        # of equally many, those whose oldest is youngest
        youngest = max(
            min((every[one].since for one in some), default=NOW)
            for some in enough
            if len(some) == len(enough[0])
        )
        assert min((every[one].since for one in made.victims), default=NOW) == youngest


@given(fleets(), wishes(), SHARED)
@settings(max_examples=examples(200))
def test_the_task_stands_on_the_kept_cards_once_its_victims_are_gone(nodes, wish, shared):
    snapshot = world([wish], nodes, shared=shared)
    plan = decide(snapshot, NOW)
    if not plan.preemptions:
        return
    (made,) = plan.preemptions
    gone = {*made.victims, *(number for number, one in holds_of(nodes).items() if one.leaving)}
    keeps = hold(
        wish.tenant_id, made.percent, inference=wish.task_type == TaskType.INFERENCE, reserved_for=wish.id
    )
    left = [
        replace(
            place,
            cards=tuple(
                replace(
                    found,
                    holds=tuple(one for one in found.holds if one.task_id not in gone)
                    + ((keeps,) if found.id in made.cards else ()),
                )
                for found in place.cards
            ),
        )
        for place in nodes
    ]
    placed = decide(world([wish], left, shared=shared), NOW).placements

    assert [one.task_id for one in placed] == [wish.id]


@given(fleets(), st.lists(st.integers(0, 4), min_size=2, max_size=5), SHARED, st.data())
@settings(max_examples=examples(150))
def test_of_many_no_two_evict_the_same_and_no_card_is_kept_twice(nodes, priorities, shared, data):
    tasks = [
        replace(data.draw(wishes(number)), priority=priority)
        for number, priority in enumerate(priorities, start=1)
    ]
    snapshot = world(tasks, nodes, shared=shared)
    plan = decide(snapshot, NOW)
    every = holds_of(nodes)
    wishing = {item.id: item for item in tasks}
    victims = [number for made in plan.preemptions for number in made.victims]
    whole = [number for made in plan.preemptions if made.percent is None for number in made.cards]

    assert len(set(victims)) == len(victims)
    assert len(set(whole)) == len(whole)
    assert not {made.task_id for made in plan.preemptions} & set(plan.refusals)
    for made in plan.preemptions:
        for number in made.victims:
            assert may_go(snapshot, wishing[made.task_id], every[number])
            assert not every[number].leaving
