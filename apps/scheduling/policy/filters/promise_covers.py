"""A promise on a card covers the estimate: no engine may use more than it promised (SCHED-05)."""

from collections.abc import Mapping
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.lanes import CardLanes, NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin, named


def _promise_mb(ask: Ask, total_mb: Any) -> Any:
    return total_mb * ask.percent // 100


def _short(ask: Ask, card: CardLanes) -> Any:
    return ask.estimate_mb - _promise_mb(ask, card.total_mb)


def _tell(ask: Ask, node: NodeLanes, card: CardLanes, left: int) -> Mapping[str, Value]:
    promise = _promise_mb(ask, card.total_mb)
    return {
        "wanted_mb": ask.estimate_mb,
        "free_mb": promise,
        "short_mb": ask.estimate_mb - promise,
        **named(node, card),
    }


@filter_plugin(
    "promise_covers",
    order=68,
    code=Code.VRAM_SHORT,
    of=Of.CARD_FACTS,
    applies=lambda ask: not ask.whole and ask.estimate_mb > 0,
    short=_short,
    tell=_tell,
)
def fits(ask: Ask, card: CardFacts) -> bool:
    # a card that does not tell its memory is refused later, for that
    return card.vram_total_mb is None or ask.estimate_mb <= _promise_mb(ask, card.vram_total_mb)
