"""Work without cards goes where the least other work is."""

from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import score_plugin
from apps.scheduling.policy.snapshot import TaskView


@score_plugin("load")
def measure(task: TaskView, node: NodeRoom, cards: list[CardRoom]) -> float:
    return 0.0 if task.gpu_required else 1 / (1 + node.tasks)
