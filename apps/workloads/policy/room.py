"""Whether a placement still fits beside all that is committed (SCHED-05 to -09, -12; SHARE-04, -05).

The last word before rows are written, so it knows nothing of memory, load or allow lists: only what two
writers could break between them. Pure: no Django, no clock, no I/O. Ids are row ids.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec


class Rule(StrEnum):
    """What forbids a placement."""

    CARD_GONE = "a card is not there any more, in quarantine, or of another node"
    NODE_CLOSED = "the node is gone or closed for new work"
    COMMITMENT = "more of a card would be promised than there is, or it is not to be shared"
    KIND = "inference and other work would share a card"
    RED_LINE = "tenants that may not share would meet"
    INFERENCE_CAP = "the node has all the inference containers that it takes"
    NOT_LENT = "what sleeps on a card is not to be borrowed, or not any more"


class Share(msgspec.Struct, frozen=True):
    """What a task holds of a card; `percent` None = the card alone. `counted`: the commitment counts it
    (SCHED-16). `lendable`: asleep, and training may borrow it now. `borrowed`: on a card that sleepers have
    lent, so that it promises nothing. `kept`: no claim, but room kept for the task. `id`: its row."""

    task_id: int
    tenant_id: int
    percent: int | None = None
    inference: bool = True
    counted: bool = True
    lendable: bool = False
    borrowed: bool = False
    kept: bool = False
    id: int = 0


@dataclass(slots=True)
class HeldCard:
    """A card and who holds what of it. `usable` False = it left its node, or is in quarantine."""

    node_id: int
    usable: bool = True
    shares: list[Share] = field(default_factory=list)


@dataclass(slots=True)
class HeldNode:
    """A node and whose work lives there: `tenants` all, `host_wide` those with the host's network or IPC.
    `host_ipc` None = not told, which counts as yes. `inference` counts its inference containers of at most
    `inference_cap` (None = any number)."""

    usable: bool = True
    host_ipc: bool | None = None
    tenants: frozenset[int] = frozenset()
    host_wide: frozenset[int] = frozenset()
    inference: int = 0
    inference_cap: int | None = None


class Asked(msgspec.Struct, frozen=True):
    """A task that is to stand on cards of a node. `counted`: it has a port definition, so that commitment and
    inference cap count it (SCHED-16). `borrowed`: on sleepers' cards."""

    task_id: int
    tenant_id: int
    node_id: int
    cards: tuple[int, ...]
    percent: int | None = None
    inference: bool = True
    counted: bool = True
    host_network: bool = False
    borrowed: bool = False


MayShare = Callable[[int, int], bool]


class Ledger:
    """What is held on some nodes and cards, to which placements are added as they are checked.

    `limit_percent` is what the promises on a card may add up to. `may_share` tells whether two tenants may
    share; whoever answers it fails closed.
    """

    def __init__(
        self,
        nodes: Mapping[int, HeldNode],
        cards: Mapping[int, HeldCard],
        *,
        may_share: MayShare,
        limit_percent: int = 100,
    ) -> None:
        self._nodes = dict(nodes)
        self._cards = dict(cards)
        self._may_share = may_share
        self._limit_percent = limit_percent

    def book(self, asked: Sequence[Asked]) -> Rule | None:
        """Book all of these, or none; answers the rule that forbids it."""
        before = self._as_they_are(asked) if len(asked) > 1 else ({}, {})
        for one in asked:
            rule = self._refusal(one)
            if rule is not None:
                self._nodes |= before[0]
                self._cards |= before[1]
                return rule
            self._put(one)
        return None

    def _as_they_are(self, asked: Sequence[Asked]) -> tuple[dict[int, HeldNode], dict[int, HeldCard]]:
        nodes = {one.node_id for one in asked} & self._nodes.keys()
        cards = {card_id for one in asked for card_id in one.cards} & self._cards.keys()
        return (
            {node_id: replace(self._nodes[node_id]) for node_id in nodes},
            {card_id: replace(self._cards[card_id]) for card_id in cards},
        )

    def shares(self, card_id: int) -> tuple[Share, ...]:
        """Who holds what of a card by now."""
        return tuple(self._cards[card_id].shares)

    def _refusal(self, asked: Asked) -> Rule | None:
        node = self._nodes.get(asked.node_id)
        if node is None or not node.usable:
            return Rule.NODE_CLOSED
        capped = asked.inference and asked.counted and node.inference_cap is not None
        if capped and node.inference >= (node.inference_cap or 0):
            return Rule.INFERENCE_CAP
        met = node.tenants if _is_wide(asked, node) else node.host_wide
        if not self._shares_with(asked.tenant_id, met):
            return Rule.RED_LINE
        for card_id in asked.cards:
            rule = self._refusal_of_card(asked, self._cards.get(card_id))
            if rule is not None:
                return rule
        return None

    def _refusal_of_card(self, asked: Asked, card: HeldCard | None) -> Rule | None:
        if card is None or not card.usable or card.node_id != asked.node_id:
            return Rule.CARD_GONE
        others = _others(asked, card)
        if not self._shares_with(asked.tenant_id, {share.tenant_id for share in others}):
            return Rule.RED_LINE
        if asked.borrowed:
            lent = not asked.inference and all(share.lendable for share in others)
            return None if lent else Rule.NOT_LENT
        if any(share.borrowed or share.inference != asked.inference for share in others):
            return Rule.KIND
        if others and (asked.percent is None or any(share.percent is None for share in others)):
            return Rule.COMMITMENT
        wanted = (asked.percent or 0) if asked.counted else 0
        if wanted and wanted + promised(others) > self._limit_percent:
            return Rule.COMMITMENT
        return None

    def _shares_with(self, tenant_id: int, others: Collection[int]) -> bool:
        return all(other == tenant_id or self._may_share(tenant_id, other) for other in others)

    def _put(self, asked: Asked) -> None:
        node = self._nodes[asked.node_id]
        if asked.tenant_id not in node.tenants:
            node.tenants |= {asked.tenant_id}
        if _is_wide(asked, node) and asked.tenant_id not in node.host_wide:
            node.host_wide |= {asked.tenant_id}
        node.inference += asked.inference and asked.counted
        share = Share(
            asked.task_id,
            asked.tenant_id,
            asked.percent,
            asked.inference,
            asked.counted,
            borrowed=asked.borrowed,
        )
        for card_id in asked.cards:
            card = self._cards[card_id]
            card.shares = [*_others(asked, card), share]


def _others(asked: Asked, card: HeldCard) -> list[Share]:
    """All but the room that is kept for it."""
    return [share for share in card.shares if not (share.kept and share.task_id == asked.task_id)]


def in_percent(percent: int | None) -> int:
    """What a promise of `percent` (None = the card alone) leaves to nobody else: whoever is alone has all."""
    return 100 if percent is None else percent


def promised(shares: Iterable[Share]) -> int:
    """What of a card is promised, in percent: a borrower promises nothing."""
    return sum(in_percent(share.percent) for share in shares if share.counted and not share.borrowed)


def _is_wide(asked: Asked, node: HeldNode) -> bool:
    return is_host_wide(
        host_network=asked.host_network,
        inference=asked.inference,
        cards=len(asked.cards),
        host_ipc=node.host_ipc,
    )


def is_host_wide(*, host_network: bool, inference: bool, cards: int, host_ipc: bool | None) -> bool:
    """Whether a task reaches beyond its container on a node: it has the host's network or, as an engine of
    several cards, the host's IPC, unless the node told that it gives none (SCHED-09)."""
    return host_network or (inference and cards > 1 and host_ipc is not False)
