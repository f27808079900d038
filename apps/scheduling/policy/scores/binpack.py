"""Fill what is begun, keep what is whole: nodes and cards with little left over come first.

Work without cards goes to nodes without cards, so that those with cards keep their processors.
"""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


@score_plugin("binpack")
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    if not ask.cards:
        return 1.0 * (node.has_cards ^ True)
    return (node.begun + 2 * chosen.fullness) / 3
