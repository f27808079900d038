"""Only cards that the engine can use: by vendor, and by compute capability where the card tells it
(ENG-01). An engine or image of the tenant's own is not judged."""

from agent.contract.codes import Code
from agent.engines.catalog import compute_capability_at_least
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin(
    "engine_vendor",
    order=60,
    code=Code.RUNTIME_CANNOT,
    of=Of.CARD_FACTS,
    empties=True,
    applies=lambda ask: ask.engine is not None and not ask.has_command,
)
def fits(ask: Ask, card: CardFacts) -> bool:
    engine = ask.engine
    if engine is None:
        return True
    able = compute_capability_at_least(card.compute_capability or None, engine.min_compute_capability)
    return card.vendor in engine.vendors and able is not False
