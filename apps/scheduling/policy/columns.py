"""The fleet as columns: a lane for each node, and one for each place of a card in it.

Owns keeping them as bookings go, and who is where. Decides nothing. Card columns are (place in the node,
node), so that a reckoning over the cards of each node goes along the nodes. Nodes stand in the order of their
cards' models, so that those of a GPU type are one stretch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.contract.states import TaskType
from apps.scheduling.policy.building import build_cards, build_nodes, largest_group
from apps.scheduling.policy.capacity import add_task, rank, reckon
from apps.scheduling.policy.facts import CardFacts, NodeFacts
from apps.scheduling.policy.lanes import LIVE, STAYING, Array, Bools, count_cards
from apps.scheduling.policy.snapshot import NodeView, Reserve

if TYPE_CHECKING:
    from apps.scheduling.policy.rooms import Booking, NodeRoom

_live = attrgetter(*LIVE)


class OneCard:
    """A card by itself, as `capacity.Held`; one object for all, since it is soon stored again."""

    __slots__ = (*LIVE, *STAYING, "_columns", "known", "place", "slot")

    promised: int
    claims_mb: int
    foreign_mb: int
    used_mb: int
    total_mb: int
    reserve_mb: int
    alone: bool
    without_other: bool
    known: int
    rank: int

    def __init__(self, columns: "Columns") -> None:
        self._columns = columns
        self.slot = self.place = -1

    def __getattr__(self, name: str) -> Any:  # slots that `Columns.load` fills
        raise AttributeError(name)

    def has_friends_only(self, friends: frozenset[int]) -> bool:
        return bool(self._columns.company(friends).cards[self.slot, self.place])


class Company:
    """Where only tenants out of a set are: by card, living on a node, and with the host's network or IPC."""

    __slots__ = ("cards", "friends", "living", "wide")

    def __init__(self, friends: frozenset[int], shape: tuple[int, int]) -> None:
        self.friends = friends
        self.cards: Bools = np.ones(shape, np.bool_)
        self.living: Bools = np.ones(shape[1], np.bool_)
        self.wide: Bools = np.ones(shape[1], np.bool_)


class Columns:
    """All columns. `width`: cards of the largest node. `card_kind`: 0 = there is none."""

    def __init__(self, nodes: Iterable[NodeView], reserve: Reserve) -> None:
        self.nodes = tuple(sorted(nodes, key=_by_model))
        self.count = len(self.nodes)
        self.versions: Array = np.zeros(self.count, np.int32)  # of bookings on each node
        self.width = max((len(node.cards) for node in self.nodes), default=0)
        self.shape = (self.width, self.count)
        self.limit = 100 - round(reserve.ratio * 100)
        self.node_kinds: list[NodeFacts] = []
        self.card_kinds: list[CardFacts | None] = [None]
        # (lane or place, tenant) of all who are somewhere; bookings add theirs at the end
        self.on_cards: tuple[list[int], list[int]] = ([], [])
        self.living: tuple[list[int], list[int]] = ([], [])
        self.wide: tuple[list[int], list[int]] = ([], [])
        self.companies: dict[frozenset[int], Company] = {}
        self.siblings: dict[tuple[int, int], int] = {}  # by (place, group), of bookings
        self.more_ports: list[tuple[int, int]] = []  # (host port, place) of bookings
        self._outsiders: dict[int, list[Company]] = {}
        self._kind_counts: Array | None = None
        self._group_sizes: tuple[Array, Array] | None = None
        self._having: dict[tuple[str, Any], Bools] = {}
        self._places_of: dict[str, dict[Any, Array]] = {}
        build_cards(self, reserve)
        build_nodes(self)
        self._one = OneCard(self)
        self._live = [getattr(self, name) for name in LIVE]

    card_kind: Array
    node_kind: Array
    begun: Array

    def __getattr__(self, name: str) -> Any:  # columns named in _CARD_COLUMNS and _NODE_COLUMNS
        raise AttributeError(name)

    # --- who is where

    def book(self, booking: "Booking", place: int) -> None:
        """A task comes to a node."""
        task, slots = booking.task, booking.slots
        for slot in slots:
            held = self.load(slot, place)
            if held.alone:
                count = len(self.nodes[place].cards)
                self.begun[place] = round(self.begun.item(place) * count + 1) / count
            add_task(held, task, borrowed=booking.borrowed)
            self.store(held)
        self.tasks[place] += 1
        self.versions[place] += 1
        key = (place, task.group_id)
        self.siblings[key] = self.siblings.get(key, 0) + 1
        if task.counted and task.task_type == TaskType.INFERENCE:
            self.cap_left[place] -= 1
        if booking.ports:
            node = self.nodes[place]
            first, last = node.port_first, node.port_last
            for _, host in booking.ports:
                self.more_ports.append((host, place))
                if first <= host <= last:
                    self.ports_left[place] -= 1
        self._join(booking, place)

    def load(self, slot: int, place: int) -> OneCard:
        """A card by itself, to be changed and stored."""
        held = self._one
        held.slot, held.place = slot, place
        held.promised = self.promised.item(slot, place)
        held.claims_mb = self.claims_mb.item(slot, place)
        held.foreign_mb = self.foreign_mb.item(slot, place)
        held.used_mb = self.used_mb.item(slot, place)
        held.total_mb = self.total_mb.item(slot, place)
        held.reserve_mb = self.reserve_mb.item(slot, place)
        held.alone = self.alone.item(slot, place)
        held.without_other = self.without_other.item(slot, place)
        held.known = int(self.unpromised_mb.item(slot, place) >= 0)
        return held

    def store(self, held: OneCard) -> None:
        """Reckon what is left of a card and keep it."""
        slot, place = held.slot, held.place
        reckon(held, self.limit)
        held.rank = rank(held.fullness, slot)
        for column, value in zip(self._live, _live(held), strict=True):
            column[slot, place] = value

    def _join(self, booking: "Booking", place: int) -> None:
        tenant = booking.task.tenant_id
        lanes, tenants = self.on_cards
        for slot in booking.slots:
            lanes.append(slot * self.count + place)
            tenants.append(tenant)
        if booking.settles:
            self.living[0].append(place)
            self.living[1].append(tenant)
        if booking.wide:
            self.wide[0].append(place)
            self.wide[1].append(tenant)
        for company in self._outsiders_of(tenant):
            for slot in booking.slots:
                company.cards[slot, place] = False
            if booking.settles:
                company.living[place] = False
            if booking.wide:
                company.wide[place] = False

    def leave(self, booking: "Booking", place: int, room: "NodeRoom") -> None:
        """The last one that joined leaves again; `room` is the node without it."""
        for column in self.on_cards:
            del column[len(column) - len(booking.slots) :]
        for here, pairs in ((booking.settles, self.living), (booking.wide, self.wide)):
            if here:
                del pairs[0][-1], pairs[1][-1]
        del self.more_ports[len(self.more_ports) - len(booking.ports) :]
        self._mirror(room)
        self.versions[place] += 1
        self.siblings[place, booking.task.group_id] -= 1
        for company in self._outsiders_of(booking.task.tenant_id):
            for slot in booking.slots:
                company.cards[slot, place] = room.card(slot).has_friends_only(company.friends)
            company.living[place] = room.has_friends_only(company.friends)
            company.wide[place] = room.is_wide_for_friends_only(company.friends)

    def _mirror(self, room: "NodeRoom") -> None:
        """Write a node's numbers into the columns."""
        place = room.place
        for card in room.cards:
            for column, value in zip(self._live, _live(card), strict=True):
                column[card.slot, place] = value
        self.begun[place] = room.begun
        self.tasks[place] = room.tasks
        self.cap_left[place] = room.cap_left
        self.ports_left[place] = room.ports_left

    def _outsiders_of(self, tenant: int) -> "list[Company]":
        """The companies that it is not of."""
        found = self._outsiders.get(tenant)
        if found is None:
            found = [one for one in self.companies.values() if tenant not in one.friends]
            self._outsiders[tenant] = found
        return found

    def company(self, friends: frozenset[int]) -> Company:
        """Where only these tenants are."""
        found = self.companies.get(friends)
        if found is None:
            found = self.companies[friends] = Company(friends, self.shape)
            self._outsiders.clear()
            for (lanes, tenants), column in (
                (self.on_cards, found.cards.reshape(-1)),
                (self.living, found.living),
                (self.wide, found.wide),
            ):
                if tenants:
                    column[np.array(lanes)[_is_outside(tenants, friends)]] = False
        return found

    def kind_counts(self) -> Array:
        """How many cards of each kind the nodes have, by (kind, node)."""
        if self._kind_counts is None:
            kinds = range(len(self.card_kinds))
            self._kind_counts = np.array([count_cards(self.card_kind == kind) for kind in kinds])
        return self._kind_counts

    def group_sizes(self) -> tuple[Array, Array]:
        """How many cards the largest joined set of each node has, and the largest on one PCIe root."""
        if self._group_sizes is None:
            links = [largest_group(card.link_group for card in node.cards) for node in self.nodes]
            roots = [largest_group(card.pcie_root or None for card in node.cards) for node in self.nodes]
            self._group_sizes = (np.array(links, np.int32), np.array(roots, np.int32))
        return self._group_sizes

    def ports_free(self, port: int) -> Bools:
        """Where a host port is free."""
        free: Bools = np.ones(self.count, np.bool_)
        free[self.places_of("ports", port, lambda node: node.ports)] = False
        free[[place for held, place in self.more_ports if held == port]] = False
        return free

    def having(self, field: str, value: Any, values_of: Callable[[NodeView], Iterable[Any]]) -> Bools:
        """Which nodes have the value among those of a field."""
        found = self._having.get((field, value))
        if found is None:
            found = self._having[field, value] = np.zeros(self.count, np.bool_)
            found[self.places_of(field, value, values_of)] = True
        return found

    def places_of(self, field: str, value: Any, values_of: Callable[[NodeView], Iterable[Any]]) -> Array:
        """Places of the nodes that have the value among those of a field, in order."""
        index = self._places_of.get(field)
        if index is None:
            found: dict[Any, list[int]] = defaultdict(list)
            for place, node in enumerate(self.nodes):
                for one in values_of(node):
                    found[one].append(place)
            index = self._places_of[field] = {one: np.array(places) for one, places in found.items()}
        return index.get(value, _NOWHERE)


_NOWHERE: Array = np.array([], np.int64)


def _by_model(node: NodeView) -> tuple[Any, ...]:
    return (sorted({card.model for card in node.cards}), node.name, node.id)


def _is_outside(tenants: list[int], friends: frozenset[int]) -> Bools:
    kinds, which = np.unique(np.array(tenants), return_inverse=True)
    return np.array([one not in friends for one in kinds.tolist()], np.bool_)[which]
