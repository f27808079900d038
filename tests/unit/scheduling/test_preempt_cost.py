"""What preemption may cost where many wait: so many questions, searches and evictions in one decision."""

from collections import Counter

import pytest

from apps.scheduling.policy import clearing, preempt
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.decide import decide
from tests.unit.scheduling.worlds import NOW, OWN, STRANGER, card, evicted, high, node, victim, world

pytestmark = pytest.mark.req("SCHED-11")


def test_two_thousand_who_wait_ask_no_more_nodes_than_is_allowed(monkeypatch):
    asked = Counter()
    judge = Board.judge

    def counted(board, item, place, *arguments, **named):
        asked[place] += 1
        return judge(board, item, place, *arguments, **named)

    # twenty kinds of tasks; the whole fleet is held by work that could go, ten of them would fit
    nodes = [node(n, *(card(8 * n + k, victim(8 * n + k + 10_000)) for k in range(2))) for n in range(30)]
    waiting = [high(n, memory_mb=21_000 + n % 20 * 100, gpu_required=1) for n in range(1, 2_001)]
    places_asked = Board.places
    searched = []
    monkeypatch.setattr(Board, "places", lambda *a, **k: searched.append(1) or places_asked(*a, **k))
    snapshot = world(waiting, nodes)
    board_plan = decide(snapshot, NOW)
    monkeypatch.setattr(Board, "places", places_asked)
    monkeypatch.setattr(Board, "judge", counted)
    plan = decide(snapshot, NOW)

    assert plan == board_plan
    assert len(plan.preemptions) == 60
    assert len(searched) <= 20
    assert sum(asked.values()) <= preempt.QUESTIONS + 20 * len(nodes)


def test_effort_has_an_end_and_the_rest_waits(monkeypatch):
    monkeypatch.setattr(preempt, "QUESTIONS", 3)
    nodes = [node(n, card(n, victim(100 + n))) for n in range(1, 9)]
    plan = decide(world([high(n) for n in range(1, 9)], nodes), NOW)

    assert len(plan.preemptions) == 3
    assert len(plan.refusals) == 5


def test_only_so_many_are_made_at_once(monkeypatch):
    monkeypatch.setattr(preempt, "PREEMPTIONS", 3)
    nodes = [node(n, card(n, victim(100 + n))) for n in range(1, 9)]
    plan = decide(world([high(n) for n in range(1, 9)], nodes), NOW)

    assert set(evicted(plan)) == {1, 2, 3}
    assert len(plan.refusals) == 5


def test_the_only_node_that_helps_is_found_among_many():
    """Behind two hundred nodes whose work is as urgent."""
    nodes = [node(n, card(n, victim(1_000 + n, priority=5))) for n in range(1, 201)]
    nodes.append(node(300, card(300, victim(50))))

    assert evicted(decide(world([high(1)], nodes), NOW)) == {1: (50,)}


@pytest.mark.parametrize("priorities", [range(9, 1, -1)], ids=["many"])
def test_many_priorities_share_what_was_found_out(monkeypatch, priorities):
    monkeypatch.setattr(preempt, "LEVELS", 2)
    nodes = [node(n, card(n, victim(100 + n, priority=n))) for n in range(1, 9)]
    plan = decide(world([high(p, priority=p) for p in priorities], nodes), NOW)

    assert evicted(plan) == {
        9: (108,),
        8: (107,),
        7: (106,),
        6: (105,),
        5: (104,),
        4: (103,),
        3: (102,),
        2: (101,),
    }


def test_a_node_of_many_cards_is_searched_in_bounds(monkeypatch):
    monkeypatch.setattr(clearing, "SETS_A_NODE", 6)
    cards = [card(k, victim(100 + k)) for k in range(8)]

    (made,) = decide(world([high(gpu_required=2)], [node(1, *cards)]), NOW).preemptions
    assert len(made.victims) == 2


def test_a_node_whose_people_may_go_is_found_behind_many_whose_may_not():
    """Sleepers of a stranger are protected, though the fleet would have room without them."""
    nodes = [node(n, card(n, victim(1_000 + n, STRANGER, sleeping=True))) for n in range(1, 101)]
    nodes.append(node(300, card(300, victim(50))))

    assert evicted(decide(world([high()], nodes), NOW)) == {1: (50,)}


def test_where_not_all_sets_are_tried_still_nobody_goes_without_need(monkeypatch):
    """The first set leaves the stranger there; all three would do, two of them suffice."""
    monkeypatch.setattr(clearing, "SETS_A_CARD", 1)
    shares = [victim(53, OWN, 40), victim(52, OWN, 10), victim(51, STRANGER, 40)]

    assert evicted(decide(world([high(percent=45)], [node(1, card(1, *shares))]), NOW)) == {1: (51, 53)}
