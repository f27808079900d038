"""Room made for higher priority: whom it may be taken from, how few go, and that nobody goes in vain."""

from datetime import timedelta

import pytest

from agent.contract.codes import Code
from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Preemption
from tests.unit.scheduling.worlds import (
    FRIEND,
    NOW,
    OWN,
    STRANGER,
    card,
    codes,
    evicted,
    high,
    hold,
    node,
    places,
    task,
    victim,
    world,
)

pytestmark = pytest.mark.req("SCHED-11")

FRIENDS = {OWN: frozenset({FRIEND}), FRIEND: frozenset({OWN})}


# --- who --------------------------------------------------------------------------------------------


def test_a_task_of_lower_priority_goes_and_its_card_is_kept():
    plan = decide(world([high()], [node(1, card(7, victim(50)))]), NOW)

    assert plan.preemptions == [Preemption(1, 0, 1, victims=(50,), cards=(7,), percent=None)]
    assert not plan.placements
    assert not plan.refusals


@pytest.mark.parametrize("priority", [5, 6])
def test_equal_and_higher_priority_stay(priority):
    plan = decide(world([high()], [node(1, card(7, victim(50, priority=priority)))]), NOW)

    assert not plan.preemptions
    assert codes(plan)[0] == Code.INSUFFICIENT_RESOURCES


def test_who_does_not_allow_it_stays():
    plan = decide(world([high()], [node(1, card(7, victim(50, preemptible=False)))]), NOW)

    assert not plan.preemptions
    assert 1 in plan.refusals


def test_a_strangers_work_goes_like_any_other():
    plan = decide(world([high()], [node(1, card(7, victim(50, STRANGER)))]), NOW)

    assert evicted(plan) == {1: (50,)}


@pytest.mark.parametrize(("tenant", "goes"), [(OWN, True), (FRIEND, True), (STRANGER, False)])
@pytest.mark.req("SHARE-05")
def test_a_sleepers_promise_is_safe_from_those_it_shares_nothing_with(tenant, goes):
    snapshot = world([high()], [node(1, card(7, victim(50, tenant, sleeping=True)))], shared=FRIENDS)

    assert evicted(decide(snapshot, NOW)) == ({1: (50,)} if goes else {})


def test_nobody_goes_where_there_is_room():
    plan = decide(world([high()], [node(1, card(7, victim(50)), card(8))]), NOW)

    assert places(plan) == {1: (1, (8,))}
    assert not plan.preemptions


def test_work_without_cards_evicts_nobody():
    closed = node(1, card(7, victim(50)), cordoned=True)

    assert not decide(world([high(gpu_required=0)], [closed]), NOW).preemptions


def test_a_hold_that_nobody_knows_is_no_victim():
    assert not decide(world([high()], [node(1, card(7, victim(0)))]), NOW).preemptions


# --- how few ----------------------------------------------------------------------------------------


def test_fewest_go_wherever_they_are():
    nodes = [
        node(1, card(1, victim(50, percent=40), victim(51, percent=40))),
        node(2, card(2, victim(40))),
    ]

    assert evicted(decide(world([high()], nodes), NOW)) == {1: (40,)}


def test_of_equally_many_the_youngest_go():
    nodes = [node(n, card(10 * n, victim(10 * n)), card(10 * n + 1, victim(10 * n + 1))) for n in (3, 5, 4)]

    assert evicted(decide(world([high(gpu_required=2)], nodes), NOW)) == {1: (50, 51)}


def test_of_the_youngest_the_oldest_counts():
    nodes = [
        node(1, card(10, victim(10)), card(11, victim(99))),
        node(2, card(20, victim(20)), card(21, victim(21))),
    ]

    assert evicted(decide(world([high(gpu_required=2)], nodes), NOW)) == {1: (20, 21)}


def test_only_as_many_cards_are_cleared_as_are_wanted():
    eight = [card(10 + k, victim(10 + k)) for k in range(8)]
    plan = decide(world([high(gpu_required=3)], [node(1, *eight, card(30))]), NOW)

    (made,) = plan.preemptions
    assert made.victims == (16, 17)
    assert set(made.cards) == {16, 17, 30}


def test_one_task_on_two_cards_is_one_victim():
    both = victim(50)
    nodes = [node(1, card(1, both), card(2, both)), node(2, card(3, victim(60)), card(4, victim(61)))]

    assert evicted(decide(world([high(gpu_required=2)], nodes), NOW)) == {1: (50,)}


def test_shares_go_until_the_promise_fits():
    shares = [victim(50 + k, percent=share) for k, share in enumerate((10, 40, 10, 20))]
    plan = decide(world([high(percent=45)], [node(1, card(1, *shares))]), NOW)

    assert plan.preemptions == [Preemption(1, 0, 1, victims=(51,), cards=(1,), percent=45)]


def test_many_small_shares_are_searched_in_bounds():
    """Nine shares of ten: five must go, and 126 sets of four would be asked in vain without arithmetic."""
    shares = [victim(50 + k, percent=10) for k in range(9)]
    snapshot = world([high(percent=45)], [node(n, card(n, *shares)) for n in range(1, 9)])

    assert evicted(decide(snapshot, NOW)) == {1: (54, 55, 56, 57, 58)}


def test_a_stranger_on_the_card_has_to_go_too():
    shares = [victim(50, OWN, 60), victim(51, STRANGER, 10), victim(52, OWN, 10)]
    plan = decide(world([high(percent=45)], [node(1, card(1, *shares))]), NOW)

    assert evicted(plan) == {1: (50, 51)}


# --- not in vain ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [
        {"memory_mb": 200_000},
        {"gpu_type": "H100"},
        {"gpu_required": 3},
        {"percent": 99},
    ],
    ids=str,
)
def test_what_can_never_fit_evicts_nobody(wish):
    plan = decide(world([high(**wish)], [node(1, card(1, victim(50)), card(2, victim(51)))]), NOW)

    assert not plan.preemptions
    assert 1 in plan.refusals


def test_a_card_that_a_protected_task_keeps_saves_its_other_tasks_too():
    kept = hold(OWN, 50, task_id=9, priority=9)
    plan = decide(world([high()], [node(1, card(1, victim(50, percent=40), kept))]), NOW)

    assert not plan.preemptions


def test_room_that_was_made_is_given_to_nobody_else_in_this_decision():
    nodes = [node(1, card(1, victim(50)))]
    plan = decide(world([high(1), high(2), high(3, priority=1)], nodes), NOW)

    assert evicted(plan) == {1: (50,)}
    assert set(plan.refusals) == {2, 3}


def test_what_a_large_victim_leaves_serves_the_next_ones_too():
    """One goes from two cards: the second task needs no second victim."""
    large = victim(60)
    nodes = [node(1, card(1, large), card(2, large)), node(2, card(3, victim(50)))]
    plan = decide(world([high(1), high(2)], nodes), NOW)

    assert evicted(plan) == {1: (60,), 2: ()}
    assert {made.cards for made in plan.preemptions} == {(1,), (2,)}


def test_who_leaves_anyway_is_waited_for_and_nobody_else_goes():
    nodes = [node(1, card(1, victim(50))), node(2, card(2, victim(60, preemptible=False, leaving=True)))]
    plan = decide(world([high()], nodes), NOW)

    assert plan.preemptions == [Preemption(1, 0, 2, victims=(), cards=(2,), percent=None)]


# --- room that is kept ------------------------------------------------------------------------------


def kept_for(number, tenant=OWN, **fields):
    return hold(tenant, fields.pop("percent", None), reserved_for=number, priority=5, **fields)


def test_kept_room_is_for_its_task_alone():
    nodes = [node(1, card(1, kept_for(9)))]

    assert places(decide(world([high(9)], nodes), NOW)) == {9: (1, (1,))}
    assert list(decide(world([high(8), task(7)], nodes), NOW).refusals) == [8, 7]


def test_who_has_room_kept_makes_no_second_preemption():
    nodes = [node(1, card(1, kept_for(1), victim(50, preemptible=False, leaving=True)), card(2, victim(51)))]
    plan = decide(world([high()], nodes), NOW)

    assert not plan.preemptions
    assert 1 in plan.refusals


@pytest.mark.parametrize(("ago_s", "evicts"), [(599, False), (600, True)])
def test_for_one_task_nobody_is_evicted_twice_within_the_pause(ago_s, evicts):
    again = high(made_room_at=NOW - timedelta(seconds=ago_s))
    nodes = [node(1, card(1, victim(50)))]

    assert evicted(decide(world([again], nodes), NOW)) == ({1: (50,)} if evicts else {})


def test_who_made_room_lately_keeps_what_still_comes_free():
    again = high(made_room_at=NOW)
    nodes = [node(1, card(1, victim(50, preemptible=False, leaving=True))), node(2, card(2, victim(51)))]

    assert evicted(decide(world([again, high(2)], nodes), NOW)) == {1: (), 2: (51,)}


def test_kept_room_is_no_victim():
    nodes = [node(1, card(1, kept_for(9), victim(50)))]

    assert not decide(world([high(1, priority=9)], nodes), NOW).preemptions


@pytest.mark.req("SCHED-11")
def test_a_card_that_comes_free_first_waits_for_the_second():
    """A high job needs the cards of A and B; A stops first: A is not let in again, and when B is gone the
    job gets both."""
    a, b = victim(50), victim(51)
    job, again = high(gpu_required=2), task(50)
    before = decide(world([job], [node(1, card(1, a), card(2, b))]), NOW)
    (made,) = before.preemptions
    assert made.victims == (50, 51)
    assert set(made.cards) == {1, 2}

    kept = kept_for(1)
    gone = victim(51, preemptible=False, leaving=True)
    between = decide(world([job, again], [node(1, card(1, kept), card(2, kept, gone))]), NOW)
    after = decide(world([job, again], [node(1, card(1, kept), card(2, kept))]), NOW)

    assert not between.placements
    assert not between.preemptions
    assert places(after) == {1: (1, (1, 2))}


# --- gangs ------------------------------------------------------------------------------------------


def stages(count, first=1, **fields):
    return [
        high(first + rank, gang=f"g{first}", gang_size=count, rank=rank, group_id=first, **fields)
        for rank in range(count)
    ]


@pytest.mark.req("SCHED-02")
def test_a_gang_makes_room_for_all_of_it_and_keeps_the_room_it_has():
    nodes = [node(1, card(1)), node(2, card(2, victim(50))), node(3, card(3, victim(51)))]
    plan = decide(world(stages(3), nodes), NOW)

    assert not plan.placements
    assert not plan.refusals
    assert sorted(made.victims for made in plan.preemptions) == [(), (50,), (51,)]
    assert {made.gang for made in plan.preemptions} == {"g1"}
    assert {made.cards for made in plan.preemptions} == {(1,), (2,), (3,)}


@pytest.mark.req("SCHED-02")
def test_a_gang_that_would_still_be_short_evicts_nobody_and_leaves_the_room():
    nodes = [node(1, card(1, victim(50))), node(2, card(2, victim(51, priority=9))), node(3, card(3))]
    plan = decide(world([*stages(3), task(9)], nodes), NOW)

    assert not plan.preemptions
    assert places(plan) == {9: (3, (3,))}


@pytest.mark.req("SCHED-02")
def test_a_gang_goes_whole_or_not_at_all():
    nodes = [
        node(1, card(1, victim(50, gang="v"))),
        node(2, card(2, victim(51, gang="v"))),
        node(3, card(3, victim(40))),
    ]
    assert evicted(decide(world([high()], nodes), NOW)) == {1: (40,)}
    assert evicted(decide(world([high()], nodes[:2]), NOW)) == {1: (50, 51)}

    firm = node(2, card(2, victim(51, gang="v", priority=7)))
    assert not decide(world([high()], [nodes[0], firm]), NOW).preemptions


def test_a_gang_whose_member_has_room_kept_makes_no_second_preemption():
    nodes = [node(1, card(1, kept_for(2))), node(2, card(2, victim(50)))]

    assert not decide(world(stages(2), nodes), NOW).preemptions


def test_training_is_preempted_for_inference_and_the_other_way_round():
    nodes = [node(1, card(1, victim(50, inference=False)))]

    assert evicted(decide(world([high(percent=30)], nodes), NOW)) == {1: (50,)}
    training = high(task_type=TaskType.TRAINING)
    assert evicted(decide(world([training], [node(1, card(1, victim(50, percent=20)))]), NOW)) == {1: (50,)}
