"""Promises on a card stay within 100 less the reserve; without a promise the card is taken alone
(SCHED-05); several cards are always whole ones (SCHED-07)."""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import CardLanes, NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin, named


def _code(ask: Ask) -> Code:
    return Code.CARDS_SHORT if ask.whole else Code.COMMITMENT_FULL


def _short(ask: Ask, card: CardLanes) -> Any:
    return ask.promise - card.largest_promise


def _tell(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    if ask.whole:
        return {"wanted": ask.cards, "free": left}
    largest = max(0, card.largest_promise)
    return {"wanted_percent": ask.percent, "largest_percent": largest, **named(node, card)}


@filter_plugin("commitment", order=90, code=_code, of=Of.CARD, short=_short, tell=_tell)
def fits(ask: Ask, card: CardLanes) -> Any:
    return card.alone if ask.whole else card.largest_promise >= ask.promise
