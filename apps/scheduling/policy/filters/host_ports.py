"""The host ports that were named are free there, and the node's range has room for the others
(SVC-04)."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("host_ports", order=120)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    if not task.ports:
        return cards
    named: set[int] = set()
    for _, port in task.ports:
        if port in node.ports or port in named:
            return Refused(Code.PORT_TAKEN, {"port": port})
        if port:
            named.add(port)
    wanted = sum(1 for _, host in task.ports if not host)
    first, last = node.view.port_first, node.view.port_last
    held = sum(1 for port in node.ports | named if first <= port <= last)
    if wanted > last - first + 1 - held:
        return Refused(Code.PORTS_EXHAUSTED)
    return cards
