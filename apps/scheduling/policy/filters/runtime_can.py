"""Whether the node's runtime can run this kind of work (AGENT-03).

The process runtime starts catalog engines by our own command lines only, and those alone that its
agent reports; Docker runs any image.
"""

from agent.contract.codes import Code
from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("runtime_can", order=40)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    runtime = node.view.runtime
    if runtime == RuntimeKind.DOCKER:
        return cards
    ours = task.task_type == TaskType.INFERENCE and not task.has_command
    if runtime == RuntimeKind.PROCESS and ours and task.engine in node.view.engines:
        return cards
    return Refused(Code.RUNTIME_CANNOT)
