"""A node may name as many cards as its heartbeat may (256): full ones get nothing, and the last ones are
used."""

from collections import Counter
from typing import Any

import pytest

from agent.contract.codes import Code
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Plan
from tests.unit.scheduling.worlds import NOW, card, codes, hold, node, task, world

MOST = 256  # fleet: services/cards.py

pytestmark = [pytest.mark.req("SCHED-05")]


def decided(count: int, free: int, waiting: int, **asked: Any) -> Plan:
    """On a node with so many cards of which the last ones are free."""
    full = count - free
    cards = [card(number, *([hold()] if number <= full else [])) for number in range(1, count + 1)]
    return decide(world([task(number, **asked) for number in range(1, waiting + 1)], [node(1, *cards)]), NOW)


@pytest.mark.parametrize("count", [65, 128, 129, 200, MOST])
@pytest.mark.parametrize("asked", [{"percent": None}, {"percent": 40}, {"gpu_required": 2}])
def test_only_free_cards_are_given_and_all_of_them(count: int, asked: dict[str, Any]) -> None:
    plan = decided(count, 2, 3, **asked)
    given = Counter(one for placed in plan.placements for one in placed.cards)
    assert not plan.broken and set(given) <= {count - 1, count}
    most = 2 if asked.get("percent") == 40 else 1
    assert max(given.values()) <= most
    assert sum(given.values()) == {40: 3}.get(asked.get("percent") or 0, 2)


@pytest.mark.parametrize("count", [127, 128, 129, MOST])
def test_a_whole_large_node_is_there_to_be_filled(count: int) -> None:
    plan = decided(count, count, count + 1, percent=None)
    assert sorted(one for placed in plan.placements for one in placed.cards) == list(range(1, count + 1))
    (refused,) = plan.refusals
    assert codes(plan, refused) == [Code.INSUFFICIENT_RESOURCES, Code.CARDS_SHORT]
