"""A card in quarantine takes nothing: memory of an ended attempt is still held there (AGENT-06)."""

from collections.abc import Mapping

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.lanes import NodeLanes
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: NodeLanes, card: object, left: int) -> Mapping[str, Value]:
    return {"cards": node.quarantined}


@filter_plugin("quarantine", order=67, code=Code.CARD_QUARANTINED, of=Of.CARD_FACTS, tell=_tell)
def fits(ask: Ask, card: CardFacts) -> bool:
    return not card.quarantined
