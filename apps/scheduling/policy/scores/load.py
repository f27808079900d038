"""Work without cards goes where the least other work is."""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


@score_plugin("load", applies=lambda ask: not ask.cards)
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    return 1 / (1 + node.tasks)
