"""A node where the model lies already needs no download (SCHED-03)."""

from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.lanes import Array, Chosen, NodeLanes
from apps.scheduling.policy.registry import score_plugin


def _where(ask: Ask, columns: Columns) -> Array:
    return columns.places_of("models", ask.model_path, lambda node: node.models)


@score_plugin("model", applies=lambda ask: bool(ask.model_path), where=_where)
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    return 1.0 * node.has_model(ask.model_path)
