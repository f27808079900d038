"""Cards of one task are joined by NVLink or the like, else they hang on one PCIe root; the stages of a gang
stand in one zone (SCHED-03)."""

from collections.abc import Sequence
from typing import Any

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import Chosen, NodeLanes
from apps.scheduling.policy.one import Company
from apps.scheduling.policy.registry import company_plugin, score_plugin
from apps.scheduling.policy.snapshot import NodeView, TaskView


@score_plugin("topology", applies=lambda ask: ask.cards > 1)
def measure(ask: Ask, node: NodeLanes, chosen: Chosen) -> Any:
    return chosen.closeness


@company_plugin("topology", gang=True)
def measure_zone(task: TaskView, node: Company, beside: Sequence[NodeView]) -> float:
    if not beside:
        return 1.0
    return sum(bool(node.view.zone) and node.view.zone == other.zone for other in beside) / len(beside)
