"""Only cards of the type that was asked for.

The type is compared word by word, without regard to case and to the maker's own words, so that
"RTX 4090" means "NVIDIA GeForce RTX 4090" and "H20" never means "H200". What only tells form or memory may be
left out at the end: "A800" means "NVIDIA A800-SXM4-80GB", too.
"""

import re
from collections.abc import Mapping
from functools import lru_cache

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.facts import CardFacts
from apps.scheduling.policy.registry import Of, Value, filter_plugin

_MAKERS = frozenset({"nvidia", "geforce", "amd", "radeon", "instinct", "tesla", "quadro", "ascend", "hygon"})

_FORM_OR_MEMORY = re.compile(r"sxm\d*|pcie|nvl|oam|hbm\d*e?|\d+gb")


@lru_cache(maxsize=4096)
def words(name: str) -> tuple[str, ...]:
    """The telling words of a card's name; all of them where only the maker is named."""
    found = re.findall(r"[^\W_]+", name.casefold())
    return tuple(word for word in found if word not in _MAKERS) or tuple(found)


@lru_cache(maxsize=4096)
def is_meant(wanted: str, name: str) -> bool:
    """Whether a type means the cards of a name."""
    asked, has = words(wanted), words(name)
    return has[: len(asked)] == asked and all(map(_FORM_OR_MEMORY.fullmatch, has[len(asked) :]))


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
    return is_meant(ask.gpu_type, card.model)
