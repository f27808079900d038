"""Several cards for one engine are of one vendor and model (SCHED-07)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.registry import Of, Value, filter_plugin


def _tell(ask: Ask, node: object, card: object, left: int) -> Mapping[str, Value]:
    return {"wanted": ask.cards, "free": left}


@filter_plugin(
    "one_model",
    order=110,
    code=Code.CARDS_SHORT,
    of=Of.CARDS,
    applies=lambda ask: ask.cards > 1,
    tell=_tell,
)
def fits(ask: Ask, models: Sequence[Any], left: Sequence[Any]) -> list[Any]:
    """Those that stay of each card: it is left, and so are enough of its model."""
    its, there = np.asarray(models), np.asarray(left, np.bool_)
    return [
        mine & (((its == model) & there).sum(axis=0) >= ask.cards)
        for model, mine in zip(its, there, strict=True)
    ]
