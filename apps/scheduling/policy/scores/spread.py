"""Replicas of one group go to different nodes, so that one machine takes fewer of them along."""

from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import score_plugin
from apps.scheduling.policy.snapshot import TaskView


@score_plugin("spread", by_group=True)
def measure(task: TaskView, node: NodeRoom, cards: list[CardRoom]) -> float:
    return 1 / (1 + node.siblings[task.group_id])
