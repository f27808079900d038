"""One node and its cards reckoned afresh out of the snapshot: where some holds are thought away, or a booking
was taken back.

Owns such nodes, under the names that columns have (`lanes.py`), so that filters and scores read both alike.
Never refuses anything: filters do.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from apps.scheduling.policy.building import node_row
from apps.scheduling.policy.capacity import MILLION, Load, rank, reckon, sum_up_holds
from apps.scheduling.policy.facts import CardFacts, NodeFacts, card_facts, node_facts
from apps.scheduling.policy.lanes import Chosen
from apps.scheduling.policy.one import OneCard, OneNode
from apps.scheduling.policy.ports import Ports
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Reserve, TaskView


class Booking(msgspec.Struct, frozen=True):
    """A task that this decision put on cards (places in the node). `wide`: it has the host's network or IPC
    there."""

    task: TaskView
    slots: tuple[int, ...]
    load: Load
    borrowed: bool
    ports: Ports
    wide: bool


# The holds and the use (MB) of a card where some holds are thought away.
Thin = Callable[[CardView], tuple[Collection[CardHold], int]]


class CardRoom:
    """One card. Its holds change through `add` only."""

    __slots__ = (
        "alone",
        "claims_mb",
        "foreign_mb",
        "free_mb",
        "free_percent",
        "fullness",
        "known",
        "largest_promise",
        "limit",
        "model",
        "promised",
        "rank",
        "reserve_mb",
        "slot",
        "start_percent",
        "tenants",
        "total_mb",
        "unpromised_mb",
        "used_mb",
        "view",
        "without_other",
    )

    def __init__(
        self, view: CardView, slot: int, reserve: Reserve, limit: int, holds: Collection[CardHold], used: int
    ) -> None:
        self.view = view
        self.slot = slot
        self.limit = limit
        self.model = f"{view.vendor} {view.model}"
        self.known = int(bool(view.vram_total_mb) and view.used_mb is not None)
        self.total_mb = view.vram_total_mb or 1
        self.foreign_mb = (view.foreign_mb or 0) * self.known
        self.used_mb = max(used, self.foreign_mb) * self.known
        self.reserve_mb = reserve.fixed_mb + int(self.total_mb * reserve.ratio)
        summed = sum_up_holds(holds, self.total_mb)
        self.promised = summed.promised
        self.claims_mb = summed.claims_mb
        self.alone = not holds
        self.without_other = not summed.other
        self.tenants = [hold.tenant_id for hold in holds]
        self._reckon()

    largest_promise: int
    unpromised_mb: int
    free_mb: int
    free_percent: int
    start_percent: int
    fullness: int
    rank: int

    def _reckon(self) -> None:
        (
            self.largest_promise,
            self.unpromised_mb,
            self.free_mb,
            self.free_percent,
            self.start_percent,
            self.fullness,
        ) = reckon(
            self.promised,
            self.claims_mb,
            self.foreign_mb,
            self.used_mb,
            self.total_mb,
            self.reserve_mb,
            self.known,
            self.limit,
        )
        self.rank = rank(self.fullness, self.slot)

    @property
    def facts(self) -> CardFacts:
        return CardFacts(*card_facts(self.view))

    def add(self, booking: Booking) -> None:
        """Book a task on it."""
        load = booking.load
        self.claims_mb += self.total_mb * load.claim // 100
        self.promised += load.promise
        self.alone = False
        self.without_other = self.without_other and load.inference
        self.tenants.append(booking.task.tenant_id)
        self._reckon()

    def has_friends_only(self, friends: frozenset[int]) -> bool:
        return friends.issuperset(self.tenants)


class NodeRoom:
    """One node; where some of its holds are thought away, with `thin`."""

    inference_cap: int
    cap_left: int
    ports_left: int
    port_first: int
    port_last: int
    tasks: int
    has_cards: bool
    cpu_percent: float
    memory_percent: float
    disk_percent: float
    load_known: bool
    ipc_apart: bool

    def __init__(
        self,
        view: NodeView,
        place: int,
        reserve: Reserve,
        limit: int,
        *,
        thin: Thin | None = None,
    ) -> None:
        self.__dict__.update(node_row(view))
        self.view = view
        self.place = place
        self._reserve = reserve
        self._limit = limit
        self._thin = thin
        self._cards: list[CardRoom | None] = [None] * len(view.cards)
        self.ports: set[int] = set(view.ports)
        self.living: frozenset[int] = view.tenants
        self.wide: frozenset[int] = view.host_wide
        self._begun = sum(1 for card in view.cards if (card.holds if thin is None else thin(card)[0]))

    @property
    def begun(self) -> float:
        """The share of its cards that hold something."""
        return self._begun / max(1, len(self._cards))

    @property
    def facts(self) -> NodeFacts:
        return NodeFacts(*node_facts(self.view))

    @property
    def cards(self) -> list[CardRoom]:
        """All its cards, in their order."""
        return [self.card(slot) for slot in range(len(self._cards))]

    def card(self, slot: int) -> CardRoom:
        """One of them; they are worked out when they are asked for first."""
        found = self._cards[slot]
        if found is None:
            view = self.view.cards[slot]
            holds, used = (view.holds, view.used_mb or 0) if self._thin is None else self._thin(view)
            found = self._cards[slot] = CardRoom(view, slot, self._reserve, self._limit, holds, used)
        return found

    @property
    def quarantined(self) -> int:
        """Cards in quarantine."""
        return sum(card.quarantined for card in self.view.cards)

    @property
    def free_cards(self) -> int:
        """Cards that hold nothing."""
        return len(self._cards) - self._begun

    def has_friends_only(self, friends: frozenset[int]) -> bool:
        return self.living <= friends

    def is_wide_for_friends_only(self, friends: frozenset[int]) -> bool:
        return self.wide <= friends

    def has_model(self, path: str) -> bool:
        return path in self.view.models

    def has_image(self, image: str) -> bool:
        return image in self.view.images

    def is_one_of(self, public_ids: frozenset[str]) -> bool:
        return self.view.public_id in public_ids

    def has_free(self, port: int) -> bool:
        return port not in self.ports

    # --- booking

    def add(self, booking: Booking) -> None:
        """Book a task that passed every filter."""
        task = booking.task
        for slot in booking.slots:
            card = self.card(slot)
            self._begun += card.alone
            card.add(booking)
        for _, host in booking.ports:
            self.ports.add(host)
            if self.port_first <= host <= self.port_last:
                self.ports_left -= 1
        if booking.load.capped:
            self.cap_left -= 1
        self.tasks += 1
        self.living |= {task.tenant_id}
        if booking.wide:
            self.wide |= {task.tenant_id}


AnyCard = CardRoom | OneCard
AnyNode = NodeRoom | OneNode


def as_one(cards: Collection[AnyCard]) -> Chosen:
    """Chosen cards for scores."""
    if len(cards) == 1:
        return Chosen(next(iter(cards)).fullness / MILLION, 0.0)
    count = max(1, len(cards))
    return Chosen(sum(card.fullness for card in cards) / (MILLION * count), closeness_of(cards))


def closeness_of(cards: Iterable[AnyCard]) -> float:
    """1 where the cards are joined by NVLink or the like, 0.5 on one PCIe root, else 0."""
    views = [card.view for card in cards]
    links: set[Any] = {view.link_group for view in views}
    if len(links) == 1 and None not in links:
        return 1.0
    roots = {view.pcie_root for view in views}
    return 0.5 if len(roots) == 1 and "" not in roots else 0.0
