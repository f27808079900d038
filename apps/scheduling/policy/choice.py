"""Which of the cards that fit a task gets (SCHED-07). The same for one snapshot, always."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from apps.scheduling.policy.rooms import AnyCard


def choose(wanted: int, fitting: Sequence[AnyCard]) -> list[AnyCard]:
    """`wanted` of the cards, of which there are enough.

    One card: the fullest that still fits, so that whole ones stay whole. Several: of one model, joined by
    NVLink or the like, else on one PCIe root; of several such sets the smallest, so that larger ones stay
    whole.
    """
    if wanted <= 1:
        return [max(fitting, key=_fullness)] if wanted else []  # the first one of equals
    cards = _smallest(fitting, wanted, lambda card: card.model) or fitting
    joined = _smallest(cards, wanted, lambda card: card.view.link_group)
    near = joined or _smallest(cards, wanted, lambda card: card.view.pcie_root or None) or cards
    return sorted(sorted(near, key=_preference)[:wanted], key=lambda card: card.slot)


def _fullness(card: AnyCard) -> int:
    return card.fullness


def _preference(card: AnyCard) -> tuple[int, int]:
    return (-card.fullness, card.slot)


def _smallest(
    cards: Sequence[AnyCard], wanted: int, name_of: Callable[[AnyCard], Hashable]
) -> list[AnyCard] | None:
    """The smallest set of cards of one name that suffices, of equal ones that of the first card; a card
    without a name belongs to none."""
    sets: dict[Hashable, list[AnyCard]] = defaultdict(list)
    for card in cards:
        name = name_of(card)
        if name is not None:
            sets[name].append(card)
    return min((found for found in sets.values() if len(found) >= wanted), key=len, default=None)
