"""Replicas of one group go to different nodes, so that one machine takes fewer of them along."""

from collections.abc import Sequence

from apps.scheduling.policy.one import Company
from apps.scheduling.policy.registry import company_plugin
from apps.scheduling.policy.snapshot import NodeView, TaskView


@company_plugin("spread")
def measure(task: TaskView, node: Company, beside: Sequence[NodeView]) -> float:
    return 1 / (1 + node.siblings_of(task.group_id))
