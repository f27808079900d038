"""A node that refused to start a task is not asked again, until it ran or is started again (RECOV-03)."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("refused_there", order=36)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    return Refused(Code.REFUSED_THERE) if node.view.public_id in task.refused_by else cards
