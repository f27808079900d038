"""A node that is in use beyond the thresholds takes nothing (SCHED-03). How busy it is must be known."""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin

_WHAT = ("cpu", "memory", "disk")


@filter_plugin("node_load_known", order=44, code=Code.NODE_LOAD_UNKNOWN, of=Of.NODE, fixed=True)
def is_known(ask: Ask, node: NodeLanes) -> Any:
    return node.load_known


def _beyond(ask: Ask, node: NodeLanes, what: str) -> Any:
    """By how many percent points it is in use beyond the threshold."""
    return getattr(node, f"{what}_percent") - getattr(ask.thresholds, what)


def _short(ask: Ask, node: NodeLanes) -> Any:
    return sum(_beyond(ask, node, what) * (_beyond(ask, node, what) > 0) for what in _WHAT)


def _tell(ask: Ask, node: NodeLanes, card: None, left: int) -> Mapping[str, Value]:
    what = max(_WHAT, key=lambda one: _beyond(ask, node, one))
    percent, limit = getattr(node, f"{what}_percent"), getattr(ask.thresholds, what)
    return {"what": what, "percent": round(percent), "limit": round(limit)}


@filter_plugin("node_load", order=45, code=Code.NODE_BUSY, of=Of.NODE, fixed=True, short=_short, tell=_tell)
def fits(ask: Ask, node: NodeLanes) -> Any:
    limit = ask.thresholds
    return (
        (node.cpu_percent <= limit.cpu)
        & (node.memory_percent <= limit.memory)
        & (node.disk_percent <= limit.disk)
    )
