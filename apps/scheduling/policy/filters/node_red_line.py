"""A whole node is out of bounds while who works there has the host's network or IPC, and the other way
round: such work needs to share with every tenant there (SCHED-09, AGENT-18). Fails closed."""

from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("node_red_line", order=48, code=Code.RED_LINE, of=Of.NODE)
def fits(ask: Ask, node: NodeLanes) -> Any:
    allowed = node.is_wide_for_friends_only(ask.friends)
    if ask.host_network:
        return allowed & node.has_friends_only(ask.friends)
    if ask.many_at_once:
        return allowed & (node.ipc_apart | node.has_friends_only(ask.friends))
    return allowed
