"""An engine that takes its share of a card at its start wants more than that to be free then (SCHED-04).

vLLM exits otherwise; where it has the card alone its own default is meant.
"""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import CardLanes, NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin, named


def _wanted_mb(ask: Ask, card: CardLanes) -> Any:
    return card.total_mb * ask.engine_percent // 100


def _short(ask: Ask, card: CardLanes) -> Any:
    return _wanted_mb(ask, card) - card.unpromised_mb + 1


def _tell(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    return {
        "wanted_mb": _wanted_mb(ask, card),
        "free_mb": card.unpromised_mb,
        "percent": ask.engine_percent,
        **named(node, card),
    }


@filter_plugin(
    "engine_memory",
    order=105,
    code=Code.ENGINE_MEMORY,
    of=Of.CARD,
    applies=lambda ask: ask.engine_percent > 0,
    short=_short,
    tell=_tell,
)
def fits(ask: Ask, card: CardLanes) -> Any:
    return card.start_percent >= ask.engine_percent
