"""A node where the engine's image lies already, or the engine itself, starts sooner (SCHED-03)."""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


@score_plugin("engine", applies=lambda ask: bool(ask.image))
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    return 1.0 * node.has_image(ask.image)
