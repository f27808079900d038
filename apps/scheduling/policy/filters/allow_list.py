"""A node that is not open to the task's tenant does not exist for it (TEN-09). First of all checks."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("allow_list", order=10)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    open_to = node.view.open_to
    if open_to is not None and task.tenant_id not in open_to:
        return Refused(Code.NODE_NOT_ALLOWED)
    return cards
