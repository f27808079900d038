"""Inference and other work never share a card (SCHED-08). Who needs a card alone shares none."""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import CardLanes, NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    return {"wanted": ask.cards, "free": left}


@filter_plugin(
    "kinds",
    order=80,
    code=Code.CARDS_SHORT,
    of=Of.CARD,
    applies=lambda ask: not ask.whole,
    tell=_tell,
)
def fits(ask: Ask, card: CardLanes) -> Any:
    return card.without_other
