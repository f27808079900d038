"""The node has as many cards of use as the task needs, whatever they hold."""

from collections.abc import Mapping

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: NodeLanes, card: object, left: int) -> Mapping[str, Value]:
    return {"wanted": ask.cards, "free": min(left, node.free_cards) if ask.whole else left}


@filter_plugin("card_count", order=65, code=Code.CARDS_SHORT, of=Of.CARD_FACTS, covered=True, tell=_tell)
def fits(ask: Ask, card: CardFacts) -> bool:
    return True
