"""Fill what is begun, keep what is whole: nodes and cards with little left over come first.

Work without cards goes to nodes without cards, so that those with cards keep their processors.
"""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


def _rise(ask: Ask, cards: int) -> float:
    """One more card of the node is begun, and it is as much fuller as the task makes it."""
    return (1 / cards + 2 * ask.percent / 100) / 3 if ask.cards else 0.0


@score_plugin("binpack", rise=_rise)
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    if not ask.cards:
        return 1.0 * (node.has_cards ^ True)
    return (node.begun + 2 * chosen.fullness) / 3
