"""Whose turn it is: priority, then fair share where it is on, then first come first served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.contract.states import TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.fairness import Turns, units_in_order
from tests.unit.scheduling.worlds import NOW, card, hold, node, places, task, world

ONE, TWO, THREE = 1, 2, 3
FAIR: dict[int, float] = {}  # on, all of weight 1


def served(snapshot, *, placed=lambda unit: True):
    """The row ids in the order of service, where each unit that `placed` says so takes its cards."""
    turns = Turns(snapshot)
    order = []
    cards = [one for place in snapshot.nodes for one in place.cards]
    for unit in turns:
        for item in unit:
            order.append(item.id)
            if placed(unit):
                turns.took(item, cards[: item.gpu_required])
    return order


def fleet(*holds):
    """Four cards of 24,000 MB; the first holds what is given."""
    return [node(1, card(1, *holds), card(2), card(3), card(4))]


def mine(number, tenant, **fields):
    return task(number, tenant_id=tenant, **fields)


@pytest.mark.req("SCHED-02")
def test_without_fair_share_first_come_is_first_served_whoever_holds_what():
    tasks = [mine(1, ONE), mine(2, ONE), mine(3, TWO)]

    assert served(world(tasks, fleet(hold(ONE)))) == [1, 2, 3]


@pytest.mark.req("SCHED-17")
def test_who_holds_least_is_served_first_and_its_share_grows_with_what_it_gets():
    tasks = [mine(1, ONE), mine(2, ONE), mine(3, TWO), mine(4, TWO), mine(5, TWO)]

    assert served(world(tasks, fleet(hold(ONE)), fair_weights=FAIR)) == [3, 1, 4, 2, 5]


@pytest.mark.req("SCHED-17", "SHARE-04")
def test_what_is_borrowed_counts_for_its_lender_alone():
    tasks = [mine(1, ONE), mine(2, TWO)]
    lent = fleet(hold(THREE, sleeping=True), hold(ONE, inference=False, borrowed=True))

    assert served(world(tasks, lent, fair_weights=FAIR)) == [1, 2]


@pytest.mark.req("SCHED-17")
def test_the_decision_goes_by_shares_that_grow_with_what_it_places():
    tasks = [mine(1, ONE), mine(2, ONE), mine(3, TWO), mine(4, TWO), mine(5, TWO)]
    snapshot = world(tasks, fleet(hold(ONE)))

    assert set(places(decide(snapshot, NOW))) == {1, 2, 3}
    assert list(places(decide(replace(snapshot, fair_weights=FAIR), NOW))) == [3, 1, 4]


@pytest.mark.req("SCHED-17")
def test_what_was_not_placed_costs_no_turn():
    tasks = [mine(1, ONE), *(mine(number, TWO) for number in (2, 3, 4))]
    snapshot = world(tasks, fleet(hold(ONE)), fair_weights=FAIR)

    assert served(snapshot, placed=lambda unit: False) == [2, 3, 4, 1]


@pytest.mark.req("SCHED-17")
def test_priority_comes_before_any_share():
    tasks = [mine(1, ONE, priority=1), mine(2, TWO)]

    assert served(world(tasks, fleet(hold(ONE)), fair_weights=FAIR)) == [1, 2]


@pytest.mark.req("SCHED-17")
def test_a_tenant_of_twice_the_weight_holds_twice_as_much_before_its_turn_is_over():
    tasks = [mine(number, ONE if number < 5 else TWO) for number in range(1, 9)]
    order = served(world(tasks, fleet(), fair_weights={TWO: 2.0}))

    assert [number < 5 for number in order] == [True, False, False, True, False, False, True, True]


@pytest.mark.req("SCHED-17")
def test_a_tenant_of_no_weight_is_served_when_no_other_waits():
    tasks = [mine(1, ONE), mine(2, TWO), mine(3, TWO)]

    assert served(world(tasks, fleet(), fair_weights={ONE: 0.0})) == [2, 3, 1]


@pytest.mark.req("SCHED-17")
def test_the_larger_of_cards_and_memory_counts():
    """One holds one of three cards and nearly all memory, the other two small cards."""
    nodes = [
        node(
            1,
            card(1, hold(ONE), vram_total_mb=80_000),
            card(2, hold(TWO), vram_total_mb=8_000),
            card(3, hold(TWO), vram_total_mb=8_000),
        )
    ]
    tasks = [mine(1, ONE), mine(2, TWO)]

    assert served(world(tasks, nodes, fair_weights=FAIR)) == [2, 1]


@pytest.mark.req("SCHED-17")
def test_a_card_that_does_not_tell_its_memory_counts_as_a_card():
    nodes = [node(1, card(1, hold(ONE), vram_total_mb=None), card(2))]

    assert served(world([mine(1, ONE), mine(2, TWO)], nodes, fair_weights=FAIR)) == [2, 1]


@pytest.mark.req("SCHED-17")
def test_a_part_of_a_card_counts_as_that_part():
    nodes = fleet(hold(ONE, 40), hold(TWO, 30), hold(TWO, 20))

    assert served(world([mine(1, TWO), mine(2, ONE)], nodes, fair_weights=FAIR)) == [2, 1]


@pytest.mark.req("SCHED-02")
def test_a_gang_is_one_unit_where_the_first_of_it_stands():
    tasks = [task(1), task(2, gang="a"), task(3), task(4, gang="a"), task(5, gang="b", priority=1)]

    assert [[item.id for item in unit] for unit in units_in_order(tasks)] == [[5], [1], [2, 4], [3]]


@st.composite
def waiting(draw):
    return [
        task(
            number,
            tenant_id=draw(st.integers(1, 4)),
            priority=draw(st.integers(0, 2)),
            gpu_required=draw(st.integers(0, 3)),
            task_type=draw(st.sampled_from([TaskType.INFERENCE, TaskType.TRAINING])),
            percent=draw(st.sampled_from([None, 10, 45])),
        )
        for number in range(1, draw(st.integers(0, 30)) + 1)
    ]


@given(waiting(), st.dictionaries(st.integers(1, 4), st.floats(0, 5)), st.randoms())
@pytest.mark.req("SCHED-17")
def test_everyone_is_served_once_and_first_come_first_inside_a_tenant(tasks, weights, chance):
    order = served(
        world(tasks, fleet(hold(ONE, 30)), fair_weights=weights), placed=lambda unit: chance.random() < 0.5
    )
    priority = {item.id: item.priority for item in tasks}

    assert sorted(order) == [item.id for item in tasks]
    assert [priority[number] for number in order] == sorted(priority.values(), reverse=True)
    for tenant in range(1, 5):
        own = [number for number in order if tasks[number - 1].tenant_id == tenant]
        assert own == sorted(own, key=lambda number: (-priority[number], number))
