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

from apps.scheduling.policy.building import build_cards, build_nodes, index_of, largest_group
from apps.scheduling.policy.capacity import rank, reckon
from apps.scheduling.policy.circles import Circles
from apps.scheduling.policy.facts import CardFacts, NodeFacts
from apps.scheduling.policy.lanes import LIVE, Array, Bools, count_cards
from apps.scheduling.policy.one import Cells, Flat
from apps.scheduling.policy.snapshot import NodeView, Reserve

if TYPE_CHECKING:
    from apps.scheduling.policy.rooms import Booking, NodeRoom

_live = attrgetter(*LIVE)


class Columns:
    """All columns. `width`: cards of the largest node. `card_kind`: 0 = there is none."""

    def __init__(self, nodes: Iterable[NodeView], reserve: Reserve) -> None:
        self.nodes = tuple(sorted(nodes, key=_by_model))
        self.count = len(self.nodes)
        self.versions: Array = np.zeros(self.count, np.int32)  # of bookings on each node
        self.width = max((len(node.cards) for node in self.nodes), default=0)
        self.fewest = min((len(node.cards) for node in self.nodes if node.cards), default=1)
        self.shape = (self.width, self.count)
        self.limit = 100 - round(reserve.ratio * 100)
        self.node_kinds: list[NodeFacts] = []
        self.card_kinds: list[CardFacts | None] = [None]
        self.bookings: defaultdict[int, list[Booking]] = defaultdict(list)  # by place
        self.circles = Circles(self.width, self.count, self.bookings)
        self.siblings: dict[int, dict[int, int]] = {}  # live tasks by group and place
        self._unreckoned: defaultdict[int, list[int]] = defaultdict(list)  # lanes of cards by place
        self.booked_ports: defaultdict[int, set[int]] = defaultdict(set)  # by place
        self._kind_counts: Array | None = None  # by (kind, node)
        self._counts: dict[tuple[bool, ...], Array] = {}
        self._group_sizes: tuple[Array, Array] | None = None
        self._having: dict[tuple[str, Any], Bools] = {}
        self.index: dict[str, dict[Any, Array | list[int]]] = {}  # places by field and value
        build_cards(self, reserve)
        build_nodes(self)
        self._flat = Flat(self)
        self.cells = Cells(self._flat)

    card_id: Array  # row ids
    card_kind: Array
    node_kind: Array
    begun: Array
    lowest: int | None  # the lowest priority of whom could be evicted, or leaves

    def __getattr__(self, name: str) -> Any:  # columns named in CARD_COLUMNS and NODE_COLUMNS
        raise AttributeError(name)

    # --- bookings

    def book(self, booking: "Booking", place: int) -> None:
        """A task comes to a node."""
        task, slots, load, ports = booking.task, booking.slots, booking.load, booking.ports
        cells, count = self.cells, self.count
        self.bookings[place].append(booking)
        for slot in slots:
            lane = slot * count + place
            if cells.alone[lane]:
                cards = len(self.nodes[place].cards)
                cells.begun[place] = round(cells.begun[place] * cards + 1) / cards
                cells.alone[lane] = False
            if not load.inference:
                cells.without_other[lane] = False
            cells.promised[lane] += load.promise
            cells.claims_mb[lane] += cells.total_mb[lane] * load.claim // 100
            self._unreckoned[place].append(lane)
        cells.tasks[place] += 1
        cells.versions[place] += 1
        there = self.siblings.get(task.group_id)
        if there is None:
            self.siblings[task.group_id] = {place: 1}
        else:
            there[place] = there.get(place, 0) + 1
        if load.capped:
            cells.cap_left[place] -= 1
        if ports:
            first, last = cells.port_first[place], cells.port_last[place]
            for _, host in ports:
                if first <= host <= last:
                    cells.ports_left[place] -= 1
        self.circles.come(task.tenant_id, place, slots, wide=booking.wide)

    def settle(self) -> None:
        """Reckon what is left of all cards that were booked since: before many nodes are asked."""
        if self._unreckoned:
            lanes = [lane for some in self._unreckoned.values() for lane in some]
            self._unreckoned.clear()
            self._reckon(self._flat, np.array(lanes, np.int64))

    def settle_at(self, place: int) -> None:
        """The same for one node, before it is asked alone."""
        for lane in self._unreckoned.pop(place, ()):
            self._reckon(self.cells, lane)

    def _reckon(self, cells: Any, lanes: Any) -> None:
        """Of one card, or of many."""
        (
            cells.largest_promise[lanes],
            cells.unpromised_mb[lanes],
            cells.free_mb[lanes],
            cells.free_percent[lanes],
            cells.start_percent[lanes],
            fullness,
        ) = reckon(
            cells.promised[lanes],
            cells.claims_mb[lanes],
            cells.foreign_mb[lanes],
            cells.used_mb[lanes],
            cells.total_mb[lanes],
            cells.reserve_mb[lanes],
            cells.unpromised_mb[lanes] >= 0,
            self.limit,
        )
        cells.fullness[lanes] = fullness
        cells.rank[lanes] = rank(fullness, lanes // self.count)

    def leave(self, booking: "Booking", place: int, room: "NodeRoom") -> None:
        """The last one that came leaves again; `room` is the node without it."""
        circles = self.circles
        for slot in booking.slots:
            circles.rewrite(circles.cards, slot * self.count + place, room.card(slot).tenants)
        circles.rewrite(circles.living, place, room.living)
        circles.rewrite(circles.wide, place, room.wide)
        self.booked_ports[place] = room.ports - self.nodes[place].ports
        for card in room.cards:
            for name, value in zip(LIVE, _live(card), strict=True):
                getattr(self, name)[card.slot, place] = value
        cells = self.cells
        cells.begun[place] = room.begun
        cells.tasks[place] = room.tasks
        cells.cap_left[place] = room.cap_left
        cells.ports_left[place] = room.ports_left
        cells.versions[place] += 1
        self.siblings[booking.task.group_id][place] -= 1

    # --- what is asked of them

    def count_kinds(self, kinds: tuple[bool, ...]) -> Array:
        """How many cards of these kinds the nodes have."""
        found = self._counts.get(kinds)
        if found is None:
            if self._kind_counts is None:
                every = range(len(self.card_kinds))
                self._kind_counts = np.array([count_cards(self.card_kind == kind) for kind in every])
            found = self._counts[kinds] = self._kind_counts[np.array(kinds, np.bool_)].sum(axis=0)
        return found

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
        free[[place for place, booked in self.booked_ports.items() if port in booked]] = False
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
        index = self.index.get(field)
        if index is None:
            index = self.index[field] = index_of(self.nodes, values_of)
        found = index.get(value)
        if found is None:
            return _NOWHERE
        if isinstance(found, list):
            found = index[value] = np.array(found)
        return found


_NOWHERE: Array = np.array([], np.int64)


def _by_model(node: NodeView) -> tuple[Any, ...]:
    return (sorted({card.model for card in node.cards}), node.name, node.id)
