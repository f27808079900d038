"""A node that refused to start a task is not asked again, until it ran or is started again (RECOV-03)."""

from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, filter_plugin


def _applies(ask: Ask) -> bool:
    return bool(ask.refused_by)


@filter_plugin("refused_there", order=36, code=Code.REFUSED_THERE, of=Of.NODE, applies=_applies)
def fits(ask: Ask, node: NodeLanes) -> Any:
    return node.is_one_of(ask.refused_by) ^ True
