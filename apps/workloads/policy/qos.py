"""How well a share of a card is walled off from what stands beside it (SHARE-03). Pure.

Owns the rule; nobody chooses it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Qos(StrEnum):
    GOLD = "gold"  # by the card itself (MIG)
    SILVER = "silver"  # by the driver (MPS)
    BRONZE = "bronze"  # by the engine's own limit


_ORDER = (Qos.BRONZE, Qos.SILVER, Qos.GOLD)


@dataclass(frozen=True)
class HeldCard:
    """What counts of a card that a task holds. `percent` None = the card alone; `in_container`: of its node,
    None = not told, from which nothing is promised."""

    vendor: str
    percent: int | None
    mig_capable: bool
    mps_capable: bool
    in_container: bool | None


def derive_qos(cards: Iterable[HeldCard]) -> Qos | None:
    """The least of what its cards give; None for a task that holds no card now. Only slices of a card rise
    above bronze."""
    found = [_of_card(card) for card in cards]
    return min(found, key=_ORDER.index) if found else None


def _of_card(card: HeldCard) -> Qos:
    if card.percent is None or card.vendor != "nvidia" or card.in_container is not False:
        return Qos.BRONZE
    if card.mig_capable:
        return Qos.GOLD
    return Qos.SILVER if card.mps_capable else Qos.BRONZE
