"""A node where the model lies already needs no download (SCHED-03)."""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


@score_plugin("model", applies=lambda ask: bool(ask.model_path), of_model=True)
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    return 1.0 * node.has_model(ask.model_path)
