"""Training on the cards of sleepers: only when nothing else fits, never across the red line."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.contract.states import TaskType
from apps.scheduling.policy import borrow
from apps.scheduling.policy.decide import Planner, decide
from tests.unit.scheduling.worlds import NOW, card, hold, node, places, task, world

pytestmark = pytest.mark.req("SHARE-04")

OWN, STRANGER, FRIEND = 1, 2, 3
FRIENDS = {OWN: frozenset({FRIEND}), FRIEND: frozenset({OWN})}


def asleep(number=50, tenant=OWN, percent=None, **fields):
    """A hold of a sleeper that would lend its card."""
    values = {"task_id": number, "sleeping": True, "lendable": True, "since": NOW}
    return hold(tenant, percent, **{**values, **fields})


def training(number=1, **fields):
    return task(number, **{"task_type": TaskType.TRAINING, "may_borrow": True, "engine": "", **fields})


def borrowed(plan):
    """By the borrower, its cards."""
    return {placed.task_id: placed.cards for placed in plan.placements if placed.borrowed}


def test_training_borrows_the_card_of_a_sleeper():
    plan = decide(world([training()], [node(1, card(7, asleep()))]), NOW)

    assert borrowed(plan) == {1: (7,)}
    assert plan.placements[0].percent is None
    assert not plan.refusals


def test_a_free_card_is_taken_before_any_is_borrowed():
    plan = decide(world([training()], [node(1, card(7, asleep())), node(2, card(8))]), NOW)

    assert places(plan) == {1: (2, (8,))}
    assert not borrowed(plan)


@pytest.mark.parametrize(
    "borrower",
    [{"may_borrow": False}, {"task_type": TaskType.INFERENCE}, {"gpu_required": 0}],
    ids=str,
)
def test_only_training_that_may_borrows(borrower):
    closed = [node(1, card(7, asleep()), cordoned=borrower.get("gpu_required") == 0)]

    assert not borrowed(decide(world([training(**borrower)], closed), NOW))


@pytest.mark.parametrize("lender", [{"lendable": False}, {"sleeping": False}], ids=str)
def test_only_a_sleeper_that_lends_lends(lender):
    assert not borrowed(decide(world([training()], [node(1, card(7, asleep(**lender)))]), NOW))


@pytest.mark.req("SHARE-05")
@pytest.mark.parametrize(("tenant", "lends"), [(OWN, True), (FRIEND, True), (STRANGER, False)])
def test_a_loan_never_crosses_the_red_line(tenant, lends):
    nodes = [node(1, card(7, asleep(tenant=tenant)))]

    assert bool(borrowed(decide(world([training()], nodes, shared=FRIENDS), NOW))) == lends


def test_every_hold_of_the_card_must_sleep_and_lend():
    shared = [asleep(50, percent=40), hold(OWN, 40, task_id=51)]

    assert not borrowed(decide(world([training()], [node(1, card(7, *shared))]), NOW))
    both = [asleep(50, percent=40), asleep(51, percent=40)]
    assert borrowed(decide(world([training()], [node(1, card(7, *both))]), NOW)) == {1: (7,)}


def test_a_lent_card_is_lent_once():
    plan = decide(world([training(1), training(2)], [node(1, card(7, asleep()))]), NOW)
    assert borrowed(plan) == {1: (7,)}
    assert 2 in plan.refusals

    borrower = hold(OWN, None, inference=False, task_id=90, borrowed=True)
    lent = [asleep(lendable=False), borrower]
    assert not borrowed(decide(world([training()], [node(1, card(7, *lent))]), NOW))


def test_fewest_sleepers_are_kept_from_waking():
    nodes = [
        node(1, card(1, asleep(50)), card(2, asleep(51))),
        node(2, card(3, asleep(52)), card(4)),
    ]

    assert set(borrowed(decide(world([training(gpu_required=2)], nodes), NOW))[1]) == {3, 4}


def test_the_only_lender_that_helps_is_found_among_many():
    nodes = [node(n, card(n, asleep(100 + n), model="Tesla T4")) for n in range(1, 101)]
    nodes.append(node(200, card(200, asleep(300))))

    assert borrowed(decide(world([training(gpu_type="RTX 4090")], nodes), NOW)) == {1: (200,)}


def test_what_can_be_asked_in_one_decision_has_an_end(monkeypatch):
    monkeypatch.setattr(borrow, "SEARCHES", 2)
    nodes = [node(n, card(n, asleep(100 + n))) for n in range(1, 9)]
    plan = decide(world([training(n, memory_mb=1_000 * n) for n in (1, 2, 3)], nodes), NOW)

    assert set(borrowed(plan)) == {1, 2}
    assert set(plan.refusals) == {3}


def test_room_kept_for_another_is_not_borrowed():
    kept = hold(OWN, None, reserved_for=9)

    assert not borrowed(decide(world([training()], [node(1, card(7, asleep(), kept))]), NOW))


def test_borrowing_comes_before_preemption():
    """Nobody is stopped while an idle card can be had."""
    victim = hold(OWN, None, task_id=60, preemptible=True, since=NOW)
    nodes = [node(1, card(7, asleep())), node(2, card(8, victim))]
    plan = decide(world([training(priority=5)], nodes), NOW)

    assert borrowed(plan) == {1: (7,)}
    assert not plan.preemptions


def test_where_nothing_can_be_borrowed_priority_still_counts():
    victim = hold(OWN, None, task_id=60, preemptible=True, since=NOW)
    plan = decide(world([training(priority=5)], [node(1, card(8, victim))]), NOW)

    assert [made.victims for made in plan.preemptions] == [(60,)]


def test_memory_that_a_sleeper_still_uses_is_not_there():
    used = {"vram_total_mb": 24_000, "used_mb": 20_000, "foreign_mb": 0}
    nodes = [node(1, card(7, asleep(measured_mb=20_000), **used))]

    assert not borrowed(decide(world([training(memory_mb=10_000)], nodes), NOW))


def test_a_move_borrows_nothing():
    planner = Planner(world([], [node(1, card(7, asleep()))]))

    assert not planner.place([training()], NOW).placements


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.booleans(), st.booleans(), st.sampled_from([None, 40])), max_size=8
    ),
    st.integers(1, 3),
)
@pytest.mark.req("SHARE-05")
def test_all_that_lie_on_a_borrowed_card_sleep_lend_and_share(lenders, wanted):
    cards = [
        card(n, asleep(100 + n, tenant, percent, sleeping=sleeps, lendable=lends))
        for n, (tenant, sleeps, lends, percent) in enumerate(lenders)
    ]
    snapshot = world([training(n, gpu_required=wanted) for n in (1, 2, 3)], [node(1, *cards)], shared=FRIENDS)
    plan = decide(snapshot, NOW)
    on = {found.id: found.holds for found in cards}
    used = [number for numbers in borrowed(plan).values() for number in numbers]
    fitting = [
        one
        for one in cards
        if all(h.sleeping and h.lendable and snapshot.may_share(OWN, h.tenant_id) for h in one.holds)
    ]

    assert len(set(used)) == len(used) == wanted * min(3, len(fitting) // wanted)
    for number in used:
        assert all(one.sleeping and one.lendable for one in on[number])
        assert all(snapshot.may_share(OWN, one.tenant_id) for one in on[number])


def test_a_sleeper_that_woke_lends_no_more():
    """The same hold, awake a second later."""
    later = replace(asleep(), sleeping=False, since=NOW + timedelta(seconds=1))

    assert not borrowed(decide(world([training()], [node(1, card(7, later))]), NOW))
