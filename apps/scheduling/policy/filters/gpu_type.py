"""Only cards of the type that was asked for.

The type is compared word by word, without regard to case and to the maker's own words, so that
"RTX 4090" means "NVIDIA GeForce RTX 4090" and "H20" never means "H200".
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.registry import Of, Value, filter_plugin

_MAKERS = frozenset({"nvidia", "geforce", "amd", "radeon", "instinct", "tesla", "quadro", "ascend", "hygon"})


@lru_cache(maxsize=4096)
def words(name: str) -> tuple[str, ...]:
    """The telling words of a card's name; all of them where only the maker is named."""
    found = re.findall(r"[^\W_]+", name.casefold())
    return tuple(word for word in found if word not in _MAKERS) or tuple(found)


def _tell(ask: Ask, node: object, card: object, left: int) -> Mapping[str, Value]:
    return {"wanted": ask.gpu_type}


@filter_plugin(
    "gpu_type",
    order=50,
    code=Code.GPU_TYPE_MISMATCH,
    of=Of.CARD_FACTS,
    empties=True,
    applies=lambda ask: bool(ask.gpu_type),
    tell=_tell,
)
def fits(ask: Ask, card: CardFacts) -> bool:
    return words(card.model) == words(ask.gpu_type)
