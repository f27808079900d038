"""A card that holds a tenant which shares no group with this one is out of bounds (SCHED-09).

Told without the other tenant or what it holds (SVC-14). Who needs a card alone stands on none that holds
anything, so it is not asked.
"""

from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.lanes import CardLanes
from apps.scheduling.policy.registry import Of, filter_plugin


@filter_plugin("red_line", order=70, code=Code.RED_LINE, of=Of.CARD, applies=lambda ask: not ask.whole)
def fits(ask: Ask, card: CardLanes) -> Any:
    return card.has_friends_only(ask.friends)
