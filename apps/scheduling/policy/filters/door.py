"""A node that the gateway can't reach takes no inference: nobody could call it there (AGENT-16)."""

from agent.contract.codes import Code
from agent.contract.states import TaskType
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("door", order=35)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    if task.task_type == TaskType.INFERENCE and not node.view.reachable:
        return Refused(Code.DOOR_CLOSED)
    return cards
