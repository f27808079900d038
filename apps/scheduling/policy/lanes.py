"""The fleet as columns: a lane for each node, and one for each place of a card in it.

Owns building them, keeping them as bookings go, and the views of a stretch of nodes that filters and scores
reckon over. Decides nothing. Card columns are (place in the node, node), so that a reckoning over the cards
of each node goes along the nodes. Nodes stand in the order of their cards' models, so that those of a GPU
type are one stretch.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import nan
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agent.contract.states import TaskType
from apps.scheduling.policy.capacity import add_task, rank, reckon, sum_up_holds
from apps.scheduling.policy.facts import CardFacts, NodeFacts, card_facts, node_facts
from apps.scheduling.policy.snapshot import CardView, NodeView, Reserve

if TYPE_CHECKING:
    from apps.scheduling.policy.rooms import Booking, NodeRoom

Bools = NDArray[np.bool_]
Array = NDArray[Any]

# What one more card of a node that has fewer than others promises: nothing fits on it.
NO_CARD = 300
NO_CAP = 1 << 30

_CARD_COLUMNS = {
    "promised": np.int16,
    "claims_mb": np.int32,
    "foreign_mb": np.int32,
    "used_mb": np.int32,
    "total_mb": np.int32,
    "reserve_mb": np.int32,
    "largest_promise": np.int16,
    "unpromised_mb": np.int32,
    "free_mb": np.int32,
    "free_percent": np.int16,
    "start_percent": np.int16,
    "fullness": np.int32,
    "rank": np.int32,
    "alone": np.bool_,
    "without_other": np.bool_,
    "model": np.int32,
}
# Those that a booking changes.
LIVE = (
    "promised",
    "claims_mb",
    "largest_promise",
    "unpromised_mb",
    "free_mb",
    "free_percent",
    "start_percent",
    "fullness",
    "rank",
    "alone",
    "without_other",
)
_STAYING = ("foreign_mb", "used_mb", "total_mb", "reserve_mb")
_live = attrgetter(*LIVE)
_NODE_COLUMNS = {
    "cap_left": np.int32,
    "inference_cap": np.int32,
    "ports_left": np.int32,
    "port_first": np.int32,
    "port_last": np.int32,
    "tasks": np.int32,
    "begun": np.float64,
    "has_cards": np.bool_,
    "cpu_percent": np.float64,
    "memory_percent": np.float64,
    "disk_percent": np.float64,
    "load_known": np.bool_,
    "ipc_apart": np.bool_,
}


class _Held(SimpleNamespace):
    """Columns while they are built, 64 bits wide."""


class OneCard:
    """A card by itself, as `capacity.Held`; one object for all, since it is soon stored again."""

    __slots__ = (*LIVE, *_STAYING, "_columns", "known", "place", "slot")

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
        self._build_cards(reserve)
        self._build_nodes()
        self._one = OneCard(self)
        self._live = [getattr(self, name) for name in LIVE]

    # --- building

    def _build_cards(self, reserve: Reserve) -> None:
        size = self.width * self.count
        promised, claims, foreign = [NO_CARD] * size, [0] * size, [0] * size
        used, total, reserved = [0] * size, [1] * size, [0] * size
        known, kinds, models = bytearray(size), [0] * size, [0] * size
        alone, without_other = bytearray(size), bytearray(b"\1" * size)
        kind_of: dict[tuple[Any, ...], int] = {}
        model_of: dict[tuple[str, str], int] = {}
        lanes, tenants = self.on_cards
        last: tuple[Any, ...] | None = None
        kind = model = keep = 0
        for place, node in enumerate(self.nodes):
            lane = place
            for card in node.cards:
                facts = card_facts(card)
                if facts != last:
                    last = facts
                    if facts not in kind_of:
                        kind_of[facts] = len(self.card_kinds)
                        self.card_kinds.append(CardFacts(*facts))
                    kind = kind_of[facts]
                    model = model_of.setdefault((card.vendor, card.model), len(model_of) + 1)
                    size_mb = facts[4] or 1
                    keep = reserve.fixed_mb + int(size_mb * reserve.ratio)
                kinds[lane], models[lane], total[lane], reserved[lane] = kind, model, size_mb, keep
                use = card.used_mb
                if use is not None and facts[4]:
                    known[lane], used[lane] = 1, use
                    foreign[lane] = card.foreign_mb or 0
                if card.holds:
                    it = sum_up_holds(card.holds, size_mb)
                    promised[lane], claims[lane] = it.promised, it.claims_mb
                    without_other[lane] = not it.other
                    for hold in card.holds:
                        lanes.append(lane)
                        tenants.append(hold.tenant_id)
                else:
                    promised[lane], alone[lane] = 0, 1
                lane += self.count
        held = _Held()
        for name, values in (
            ("promised", promised),
            ("claims_mb", claims),
            ("foreign_mb", foreign),
            ("used_mb", used),
            ("total_mb", total),
            ("reserve_mb", reserved),
        ):
            setattr(held, name, np.array(values, np.int64).reshape(self.shape))
        flags = {"known": known, "alone": alone, "without_other": without_other}
        for name, bits in flags.items():
            setattr(held, name, np.frombuffer(bits, np.bool_).reshape(self.shape))
        reckon(held, self.limit)
        slots = np.arange(self.width).reshape(-1, 1)
        held.rank = rank(held.fullness, slots)
        held.model = np.array(models, np.int32).reshape(self.shape)
        for name, kept in _CARD_COLUMNS.items():
            setattr(self, name, np.array(getattr(held, name), kept))
        self.card_kind: Array = np.array(kinds, np.int32).reshape(self.shape)

    def _build_nodes(self) -> None:
        kind_of: dict[tuple[Any, ...], int] = {}
        kinds = []
        rows: dict[str, list[Any]] = {name: [] for name in _NODE_COLUMNS if name != "begun"}
        for place, node in enumerate(self.nodes):
            facts = node_facts(node)
            if facts not in kind_of:
                kind_of[facts] = len(self.node_kinds)
                self.node_kinds.append(NodeFacts(*facts))
            kinds.append(kind_of[facts])
            for name, value in node_row(node).items():
                rows[name].append(value)
            for tenant in node.tenants:
                self.living[0].append(place)
                self.living[1].append(tenant)
            for tenant in node.host_wide:
                self.wide[0].append(place)
                self.wide[1].append(tenant)
        self.node_kind: Array = np.array(kinds, np.int32)
        for name, values in rows.items():
            setattr(self, name, np.array(values, _NODE_COLUMNS[name]))
        cards = (self.card_kind > 0).sum(axis=0)
        begun = ((self.card_kind > 0) & (self.alone ^ True)).sum(axis=0)
        self.begun: Array = begun / np.maximum(cards, 1)

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

    def stored(self, slot: int, place: int) -> OneCard:
        """A card by itself with all that is left of it, to be looked at."""
        held = self._one
        if (held.slot, held.place) != (slot, place):
            reckon(self.load(slot, place), self.limit)
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


def count_cards(some: Bools) -> Array:
    """How many cards of each node are among them."""
    count: Array = np.add.reduce(some.view(np.int8), axis=0, dtype=np.int16)
    return count


def _by_model(node: NodeView) -> tuple[Any, ...]:
    return (sorted({card.model for card in node.cards}), node.name, node.id)


def _is_outside(tenants: list[int], friends: frozenset[int]) -> Bools:
    kinds, which = np.unique(np.array(tenants), return_inverse=True)
    return np.array([one not in friends for one in kinds.tolist()], np.bool_)[which]


def node_row(node: NodeView) -> dict[str, Any]:
    """The columns of one node, as it comes."""
    cap = node.inference_cap
    first, last = node.port_first, node.port_last
    percents = (node.cpu_percent, node.memory_percent, node.disk_percent)
    return {
        "cap_left": NO_CAP if cap is None else cap - node.inference_count,
        "inference_cap": NO_CAP if cap is None else cap,
        "ports_left": last - first + 1 - sum(1 for port in node.ports if first <= port <= last),
        "port_first": first,
        "port_last": last,
        "tasks": sum(node.siblings.values()),
        "has_cards": bool(node.cards),
        "cpu_percent": nan if percents[0] is None else percents[0],
        "memory_percent": nan if percents[1] is None else percents[1],
        "disk_percent": nan if percents[2] is None else percents[2],
        "load_known": None not in percents,
        "ipc_apart": node.host_ipc is False,
    }


def largest_group(names: Iterable[Any]) -> int:
    """How many of them have the most frequent name; None is no name."""
    counts: dict[Any, int] = {}
    for name in names:
        if name is not None:
            counts[name] = counts.get(name, 0) + 1
    return max(counts.values(), default=0)


class CardLanes:
    """The cards of a stretch of nodes, or of one: the columns of `Columns`, live where it is a slice."""

    view: CardView  # of one card only

    def __init__(self, columns: Columns, where: Any) -> None:
        self._columns = columns
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name not in _CARD_COLUMNS:
            raise AttributeError(name)
        column = getattr(self._columns, name)[:, self._where]
        setattr(self, name, column)
        return column

    def has_friends_only(self, friends: frozenset[int]) -> Any:
        """Whether nobody but these tenants holds anything on it."""
        return self._columns.company(friends).cards[:, self._where]


class NodeLanes:
    """A stretch of nodes, likewise."""

    def __init__(self, columns: Columns, where: Any) -> None:
        self._columns = columns
        self._where = where

    def __getattr__(self, name: str) -> Any:
        if name not in _NODE_COLUMNS:
            raise AttributeError(name)
        where = self._where
        if isinstance(where, int):
            return getattr(self._columns, name).item(where)
        column = getattr(self._columns, name)[where]
        setattr(self, name, column)
        return column

    @property
    def view(self) -> NodeView:
        """Of one node only."""
        view: NodeView = self._columns.nodes[self._where]
        return view

    def has_friends_only(self, friends: frozenset[int]) -> Any:
        """Whether nobody but these tenants lives there."""
        return self._columns.company(friends).living[self._where]

    def is_wide_for_friends_only(self, friends: frozenset[int]) -> Any:
        """Whether nobody but these tenants has the host's network or IPC there."""
        return self._columns.company(friends).wide[self._where]

    def has_model(self, path: str) -> Any:
        """Whether the model lies there."""
        if isinstance(self._where, int):
            return path in self.view.models
        return self._columns.having("models", path, lambda node: node.models)[self._where]

    def has_image(self, image: str) -> Any:
        """Whether the image lies there."""
        if isinstance(self._where, int):
            return image in self.view.images
        return self._columns.having("images", image, lambda node: node.images)[self._where]

    def is_one_of(self, public_ids: frozenset[str]) -> Any:
        """Whether it is named among these."""
        named: Bools = np.zeros(self._columns.count, np.bool_)
        for public_id in public_ids:
            named[self._columns.places_of("public_id", public_id, lambda node: (node.public_id,))] = True
        return named[self._where]

    def has_free(self, port: int) -> Any:
        """Whether the host port is free there."""
        return self._columns.ports_free(port)[self._where]

    def siblings_of(self, group_id: int) -> int:
        """Live tasks of the group there; of one node only."""
        there = self.view.siblings.get(group_id, 0)
        return there + self._columns.siblings.get((self._where, group_id), 0)


class Chosen:
    """The cards that a task would get, as one: `fullness` 0..1 of them together; `closeness` 1 where they are
    joined, 0.5 on one PCIe root, else 0. Of many nodes both are the most that they can be."""

    __slots__ = ("closeness", "fullness")

    def __init__(self, fullness: Any, closeness: Any) -> None:
        self.fullness = fullness
        self.closeness = closeness
