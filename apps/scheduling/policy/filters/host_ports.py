"""The host ports that were named are free there, and the node's range has room for the others
(SVC-04)."""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: NodeLanes, card: None, left: int) -> Mapping[str, Value]:
    named = ask.named_ports
    return {"port": next(port for port in named if named.count(port) > 1 or not node.has_free(port))}


@filter_plugin(
    "named_ports",
    order=120,
    code=Code.PORT_TAKEN,
    of=Of.NODE,
    applies=lambda ask: bool(ask.named_ports),
    tell=_tell,
)
def are_named_free(ask: Ask, node: NodeLanes) -> Any:
    named = set(ask.named_ports)
    free: Any = len(named) == len(ask.named_ports)
    for port in named:
        free = free & node.has_free(port)
    return free


@filter_plugin(
    "port_range",
    order=121,
    code=Code.PORTS_EXHAUSTED,
    of=Of.NODE,
    applies=lambda ask: ask.any_ports > 0,
)
def fits(ask: Ask, node: NodeLanes) -> Any:
    if not ask.named_ports:
        return node.ports_left >= ask.any_ports
    inside = sum(1 * ((port >= node.port_first) & (port <= node.port_last)) for port in ask.named_ports)
    return node.ports_left >= ask.any_ports + inside
