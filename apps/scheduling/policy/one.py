"""One node and one card out of the columns, with plain numbers under the names that columns have.

Owns reading them, now: what was booked since is in them. A few values of one node are read ten times as fast
like this as by arrays of one.
"""

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from apps.scheduling.policy.facts import CardFacts, NodeFacts
from apps.scheduling.policy.lanes import CARD_COLUMNS, NODE_COLUMNS
from apps.scheduling.policy.snapshot import CardView, NodeView

if TYPE_CHECKING:
    from apps.scheduling.policy.circles import Friends
    from apps.scheduling.policy.columns import Columns


class Flat:
    """Every column in one row: those of a card stand at (its place in the node) x nodes + place."""

    __slots__ = (*CARD_COLUMNS, *NODE_COLUMNS, "card_id", "versions")

    def __init__(self, columns: "Columns") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(columns, name).reshape(-1))

    def __getattr__(self, name: str) -> Any:  # slots that are filled above
        raise AttributeError(name)


class Cells(Flat):
    """The same as plain cells, for one of them."""

    __slots__ = ()

    def __init__(self, flat: Flat) -> None:
        for name in Flat.__slots__:
            setattr(self, name, memoryview(getattr(flat, name)))


class OneCard:
    """One card. `lane` is where it stands in the cells."""

    __slots__ = ("_cells", "_columns", "lane", "place", "slot")

    promised: int
    claims_mb: int
    foreign_mb: int
    used_mb: int
    total_mb: int
    reserve_mb: int
    largest_promise: int
    unpromised_mb: int
    free_mb: int
    free_percent: int
    start_percent: int
    fullness: int
    rank: int
    alone: bool
    without_other: bool
    model: int

    def __init__(self, columns: "Columns", place: int, slot: int) -> None:
        self._columns = columns
        self._cells = columns.cells
        self.place = place
        self.slot = slot
        self.lane = slot * columns.count + place

    @property
    def view(self) -> CardView:
        return self._columns.nodes[self.place].cards[self.slot]

    @property
    def facts(self) -> CardFacts:
        facts: CardFacts | None = self._columns.card_kinds[
            self._columns.card_kind.item(self.slot, self.place)
        ]
        if facts is None:
            raise AssertionError(f"node {self.place} has no card at {self.slot}")
        return facts

    def has_friends_only(self, friends: "Friends") -> bool:
        circles = self._columns.circles
        return circles.cards.is_only(circles.of(friends), self.lane)


class Company:
    """Who is on one node."""

    __slots__ = ("_columns", "place")

    def __init__(self, columns: "Columns", place: int) -> None:
        self._columns = columns
        self.place = place

    @property
    def view(self) -> NodeView:
        return self._columns.nodes[self.place]

    def siblings_of(self, group_id: int) -> int:
        """Live tasks of the group there."""
        there = self._columns.siblings.get(group_id)
        return 0 if there is None else there.get(self.place, 0)


class OneNode(Company):
    """One node."""

    __slots__ = ("_cells",)

    cap_left: int
    inference_cap: int
    ports_left: int
    port_first: int
    port_last: int
    tasks: int
    begun: float
    has_cards: bool
    cpu_percent: float
    memory_percent: float
    disk_percent: float
    load_known: bool
    ipc_apart: bool

    def __init__(self, columns: "Columns", place: int) -> None:
        self._columns = columns
        self._cells = columns.cells
        self.place = place
        columns.settle_at(place)

    @property
    def facts(self) -> NodeFacts:
        facts: NodeFacts = self._columns.node_kinds[self._columns.node_kind.item(self.place)]
        return facts

    @property
    def cards(self) -> list[OneCard]:
        """All its cards, in their order."""
        return [OneCard(self._columns, self.place, slot) for slot in range(len(self.view.cards))]

    @property
    def quarantined(self) -> int:
        """Cards in quarantine."""
        return sum(card.quarantined for card in self.view.cards)

    @property
    def free_cards(self) -> int:
        """Cards that hold nothing."""
        return sum(card.alone for card in self.cards)

    def has_friends_only(self, friends: "Friends") -> bool:
        circles = self._columns.circles
        return circles.living.is_only(circles.of(friends), self.place)

    def is_wide_for_friends_only(self, friends: "Friends") -> bool:
        circles = self._columns.circles
        return circles.wide.is_only(circles.of(friends), self.place)

    def has_model(self, path: str) -> bool:
        return path in self.view.models

    def has_image(self, image: str) -> bool:
        return image in self.view.images

    def is_one_of(self, public_ids: frozenset[str]) -> bool:
        return self.view.public_id in public_ids

    def has_free(self, port: int) -> bool:
        booked = self._columns.booked_ports.get(self.place, ())
        return port not in self.view.ports and port not in booked


def _card_cell(name: str) -> Any:
    read = attrgetter(name)
    return property(lambda card: read(card._cells)[card.lane])


def _node_cell(name: str) -> Any:
    read = attrgetter(name)
    return property(lambda node: read(node._cells)[node.place])


for _name in CARD_COLUMNS:
    setattr(OneCard, _name, _card_cell(_name))
for _name in NODE_COLUMNS:
    setattr(OneNode, _name, _node_cell(_name))
