"""A node takes a number of inference containers, those that sleep included (SCHED-06).

Who has no port definition is neither counted nor asked (SCHED-16).
"""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: NodeLanes, card: None, left: int) -> Mapping[str, Value]:
    return {"count": node.inference_cap - node.cap_left, "cap": node.inference_cap}


@filter_plugin(
    "inference_cap",
    order=47,
    code=Code.INFERENCE_CAP,
    of=Of.NODE,
    applies=lambda ask: ask.inference and ask.counted,
    tell=_tell,
)
def fits(ask: Ask, node: NodeLanes) -> Any:
    return node.cap_left > 0
