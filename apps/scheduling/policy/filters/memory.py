"""Enough free memory on each card, strangers' use included (SCHED-04).

A promise must be free as a whole: an engine that is told "40 percent" takes them at its start. Its
reserve stands in the commitment. An estimate for a card alone must fit beside both reserves. A card that
does not tell its memory is never taken for an empty one.
"""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.capacity import higher
from apps.scheduling.policy.lanes import CardLanes, NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin, named


def _wanted_mb(ask: Ask, card: CardLanes) -> Any:
    return ask.need_mb if ask.whole else card.total_mb * ask.percent // 100


def _free_mb(ask: Ask, card: CardLanes) -> Any:
    return card.free_mb if ask.whole else card.unpromised_mb


def _short(ask: Ask, card: CardLanes) -> Any:
    return _wanted_mb(ask, card) - _free_mb(ask, card)


def _tell(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    wanted, free = _wanted_mb(ask, card), _free_mb(ask, card)
    return {"wanted_mb": wanted, "free_mb": free, "short_mb": wanted - free, **named(node, card)}


def _tell_strangers(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    told = {**_tell(ask, node, card, left), "foreign_mb": card.foreign_mb}
    return {**told, "process": card.view.foreign} if card.view.foreign else told


@filter_plugin("memory_known", order=95, code=Code.VRAM_UNKNOWN, of=Of.CARD, covered=True)
def is_known(ask: Ask, card: CardLanes) -> Any:
    return card.unpromised_mb >= 0


@filter_plugin("memory", order=100, code=Code.VRAM_SHORT, of=Of.CARD, covered=True, short=_short, tell=_tell)
def fits_but_for_strangers(ask: Ask, card: CardLanes) -> Any:
    left = card.total_mb - higher(card.claims_mb, card.used_mb - card.foreign_mb)
    return _wanted_mb(ask, card) <= (left - card.reserve_mb if ask.whole else left)


@filter_plugin(
    "foreign_memory", order=101, code=Code.FOREIGN_MEMORY, of=Of.CARD, short=_short, tell=_tell_strangers
)
def fits(ask: Ask, card: CardLanes) -> Any:
    return card.free_mb >= ask.need_mb if ask.whole else card.free_percent >= ask.percent
