"""Tasks that start together are placed together, or none of them is."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.codes import Code
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.decide import Planner, decide
from tests.unit.scheduling.worlds import NOW, card, codes, hold, node, places, task, world

pytestmark = pytest.mark.req("SCHED-02")


def stages(count, first=1, **fields):
    """A pipeline of so many stages, one card each where nothing else is said."""
    values = {"gang": f"g{first}", "gang_size": count, "group_id": first, "gpu_required": 1}
    return [task(first + rank, **{**values, "rank": rank, **fields}) for rank in range(count)]


def machines(count, cards=1, **fields):
    return [node(n, *(card(10 * n + k) for k in range(cards)), **fields) for n in range(1, count + 1)]


def told(plan, number=1):
    """The reason of the gang, with its numbers."""
    return next(why.params for why in plan.refusals[number] if why.code == Code.GANG_SHORT)


def test_stages_take_several_nodes():
    plan = decide(world(stages(3, gpu_required=2), machines(3, cards=2)), NOW)

    assert [placed.task_id for placed in plan.placements] == [1, 2, 3]
    assert {placed.node_id for placed in plan.placements} == {1, 2, 3}
    assert {placed.gang for placed in plan.placements} == {"g1"}
    assert not plan.refusals


def test_one_stage_without_a_place_leaves_all_of_them_waiting():
    plan = decide(world(stages(3), machines(2)), NOW)

    assert not plan.placements
    assert set(plan.refusals) == {1, 2, 3}
    assert told(plan) == {"wanted": 3, "found": 2}


def test_the_reasons_of_nodes_come_with_it():
    nodes = [*machines(1), node(2, card(20, model="Tesla T4")), node(3, card(30), online=False)]
    plan = decide(world(stages(2, gpu_type="RTX 4090"), nodes), NOW)

    assert codes(plan)[:2] == [Code.INSUFFICIENT_RESOURCES, Code.GANG_SHORT]
    assert set(codes(plan)[2:]) == {Code.GPU_TYPE_MISMATCH, Code.NODE_OFFLINE}


def test_what_a_gang_does_not_get_goes_to_those_after_it():
    plan = decide(world([*stages(3), task(9)], machines(2)), NOW)

    assert list(places(plan)) == [9]


def test_a_gang_stands_before_what_came_later_and_behind_what_is_more_urgent():
    assert set(places(decide(world([*stages(2), task(9)], machines(2)), NOW))) == {1, 2}
    urgent = task(9, priority=1)
    assert set(places(decide(world([*stages(2), urgent], machines(2)), NOW))) == {9}


def test_two_gangs_do_not_block_each_other_half_placed():
    plan = decide(world([*stages(2, 1), *stages(2, 5)], machines(3)), NOW)

    assert set(places(plan)) == {1, 2}
    assert set(plan.refusals) == {5, 6}


def test_a_gang_waits_for_members_that_are_not_there():
    plan = decide(world(stages(3)[:2], machines(3)), NOW)

    assert not plan.placements
    assert told(plan) == {"wanted": 3, "found": 2}


def test_a_gang_waits_while_one_of_it_backs_off():
    first, second = stages(2)
    resting = stages(2, not_before=NOW + timedelta(seconds=1))[1]

    plan = decide(world([first, resting], machines(2)), NOW)
    assert not plan.placements
    assert not plan.refusals
    assert len(decide(world([first, second], machines(2)), NOW).placements) == 2


@pytest.mark.req("TEN-01")
def test_a_gang_of_a_suspended_tenant_waits_as_a_whole():
    plan = decide(world(stages(2), machines(2), suspended={1: "unpaid"}), NOW)

    assert {codes(plan, number)[0] for number in (1, 2)} == {Code.TENANT_SUSPENDED}


def test_a_gang_that_a_check_trips_over_leaves_no_trace():
    good, bad = stages(2)[0], stages(2, gpu_type=5)[1]
    plan = decide(world([good, bad, task(9), task(10)], machines(2)), NOW)

    assert set(plan.broken) == {1, 2}
    assert set(places(plan)) == {9, 10}


def test_stages_that_fit_into_one_zone_stay_there():
    """The first one alone would go to the node that is begun, in the zone with one node."""
    nodes = [
        node(1, card(10, hold(percent=None)), card(11), zone="a"),
        node(2, card(20), zone="b"),
        node(3, card(30), zone="b"),
    ]
    plan = decide(world(stages(2), nodes), NOW)

    assert {placed.node_id for placed in plan.placements} == {2, 3}


def test_no_zone_with_room_for_all_is_no_reason_to_wait():
    nodes = [node(1, card(10), zone="a"), node(2, card(20), zone="b"), node(3, card(30))]
    plan = decide(world(stages(3), nodes), NOW)

    assert len(plan.placements) == 3


def test_who_finds_nothing_chooses_first_in_the_next_try():
    """The second task can only use the node that the first one likes best, for it wants a port there."""
    liked = node(1, card(10, hold(percent=None)), card(11))
    other = node(2, card(20), card(21), ports=frozenset({7000}))
    first, second = stages(2)
    second = stages(2, ports=((8000, 7000),))[1]
    swapped = [stages(2, ports=((8000, 0), (8001, 0)))[0], second]

    assert places(decide(world([first, second], [liked, other]), NOW))[2] == (1, (11,))
    assert places(decide(world(swapped, [liked, other]), NOW))[2] == (1, (11,))


@pytest.mark.req("SCHED-07")
def test_every_stage_takes_whole_cards_of_one_model():
    mixed = node(1, card(10), card(11, model="Tesla T4"))
    plan = decide(world(stages(2, gpu_required=2), [mixed, *machines(3, cards=2)[1:]]), NOW)

    assert {placed.node_id for placed in plan.placements} == {2, 3}


def test_a_gang_is_not_cut_by_portions():
    planner = Planner(world([task(9, priority=1), *stages(3)], machines(4)))

    assert len(planner.portion(2, NOW).placements) == 4
    assert planner.left == 0
    assert planner.portion(2, NOW) is None


def test_gangs_that_wait_in_vain_are_judged_once_for_all_that_are_alike(monkeypatch):
    ranked, asked = Board.ranked, []
    monkeypatch.setattr(Board, "ranked", lambda *a, **k: asked.append(1) or ranked(*a, **k))
    gangs = [one for number in range(200) for one in stages(3, first=1 + 3 * number)]
    plan = decide(world(gangs, machines(2)), NOW)

    assert len(plan.refusals) == 600
    assert len(asked) < 12


@st.composite
def worlds(draw):
    nodes = [
        node(
            n,
            *(card(10 * n + k) for k in range(draw(st.integers(1, 3)))),
            zone=draw(st.sampled_from(["", "a", "b"])),
        )
        for n in range(1, draw(st.integers(1, 4)) + 1)
    ]
    tasks = []
    for _ in range(draw(st.integers(1, 5))):
        fields = {"priority": draw(st.integers(0, 2)), "gpu_required": draw(st.integers(1, 2))}
        tasks += stages(draw(st.integers(1, 3)), first=len(tasks) + 1, **fields)
    return world(tasks, nodes)


@given(worlds())
def test_every_gang_is_placed_whole_or_refused_whole(snapshot):
    plan = decide(snapshot, NOW)
    by_gang = {}
    for item in snapshot.tasks:
        by_gang.setdefault(item.gang, set()).add(item.id)
    placed = {one.task_id for one in plan.placements}
    cards = [number for one in plan.placements for number in one.cards]

    assert len(set(cards)) == len(cards)
    for members in by_gang.values():
        assert members <= placed or members <= set(plan.refusals)


@given(worlds())
def test_what_was_tried_and_taken_back_changes_nothing_for_the_others(snapshot):
    """Without the gangs that were refused the rest of the plan is the same."""
    plan = decide(snapshot, NOW)
    rest = tuple(item for item in snapshot.tasks if item.id not in plan.refusals)

    assert decide(world(rest, list(snapshot.nodes)), NOW).placements == plan.placements
