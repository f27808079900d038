"""The fleet's working copy while one decision is made: what is left of each node, and what was taken.

Owns booking and taking back, and what a node is where some holds are thought away.
Judges nothing. A node is named by its place in `nodes`, a card by its row id, or by its place in the node
(slot).
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

from agent.contract.states import TaskType
from apps.scheduling.policy.capacity import Load, load_of
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.one import OneNode
from apps.scheduling.policy.ports import Ports, choose_ports
from apps.scheduling.policy.rooms import AnyNode, Booking, NodeRoom, Thin
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Snapshot, TaskView
from apps.workloads.policy.room import in_percent

NOBODY: frozenset[int] = frozenset()


class Bookings:
    """`touched` names places in the order of bookings, also of those taken back. `keep_room`: tasks (row ids)
    that have room kept for them, for each of which the nodes look different."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.columns = Columns(snapshot.nodes, snapshot.reserve)
        self.nodes: tuple[NodeView, ...] = self.columns.nodes
        self.place_of = {node.id: place for place, node in enumerate(self.nodes)}
        self.touched: list[int] = []
        self.undone = 0
        self._kept: dict[int, list[int]] = defaultdict(list)  # task -> places where room is kept for it
        for place, node in enumerate(self.nodes):
            for card in node.cards:
                for hold in card.holds:
                    if hold.reserved_for:
                        self._kept[hold.reserved_for].append(place)
        self.keep_room = frozenset(self._kept)
        self._booked: list[int] = []  # places, in order
        self.versions: memoryview = self.columns.cells.versions  # by place: of bookings and undoings there

    def slot_of(self, place: int, card: int) -> int:
        """Where in its node a card (row id) stands."""
        return next(slot for slot, view in enumerate(self.nodes[place].cards) if view.id == card)

    def ids_of(self, place: int, slots: tuple[int, ...]) -> tuple[int, ...]:
        """The row ids of cards of a node."""
        ids, count = self.columns.cells.card_id, self.columns.count
        if len(slots) == 1:
            return (ids[slots[0] * count + place],)
        return tuple([ids[slot * count + place] for slot in slots])

    def holds(self, place: int, card: int) -> tuple[CardHold, ...]:
        """What is held on the card by now, what was taken in this decision too."""
        slot = self.slot_of(place, card)
        mine = [one for one in self.columns.bookings.get(place, ()) if slot in one.slots]
        return (*self.nodes[place].cards[slot].holds, *map(_hold_of, mine))

    def take(self, task: TaskView, place: int, cards: Sequence[int], *, borrowed: bool = False) -> Ports:
        """Book a task that `judge` let in; answers its (container port, host port)s. Holds that were thought
        away stay where they are. `borrowed`: the cards are sleepers' (SHARE-04)."""
        return self.book(task, place, tuple(self.slot_of(place, card) for card in cards), borrowed=borrowed)

    def book(
        self,
        task: TaskView,
        place: int,
        slots: tuple[int, ...],
        load: Load | None = None,
        *,
        borrowed: bool = False,
    ) -> Ports:
        """The same with the cards' slots; `load`: what such a task puts on them, where that is known."""
        columns = self.columns
        cells = columns.cells
        ports: Ports = ()
        if task.ports:
            held, booked = self.nodes[place].ports, columns.booked_ports[place]
            ports = choose_ports(task, held, booked, cells.port_first[place], cells.port_last[place])
        if load is None:
            load = load_of(task, borrowed=borrowed)
        wide = load.host_network or (load.many_at_once and not cells.ipc_apart[place])
        columns.book(Booking(task, slots, load, borrowed, ports, wide), place)
        self._booked.append(place)
        self.touched.append(place)
        return ports

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._booked)

    def undo(self, mark: int) -> None:
        """Take back all that was booked since, the latest first."""
        while len(self._booked) > mark:
            place = self._booked.pop()
            last = self.columns.bookings[place].pop()
            self.columns.leave(last, place, self._room(place))
            self.touched.append(place)
            self.undone += 1

    def _room(self, place: int, thin: Thin | None = None, without: Collection[int] = NOBODY) -> NodeRoom:
        """The node by itself, with numbers of its own."""
        room = NodeRoom(self.nodes[place], place, self.snapshot.reserve, self.columns.limit, thin=thin)
        for booking in self.columns.bookings.get(place, ()):
            if booking.task.id not in without:
                room.add(booking)
        return room

    def room_for(
        self, task: TaskView, place: int, without: Collection[int] = NOBODY, lent: Collection[int] = NOBODY
    ) -> AnyNode:
        """The node less the room kept for the task and the holds that are thought away (`Board.judge`)."""
        if not without and not lent and task.id not in self._kept:
            return OneNode(self.columns, place)

        def is_gone(hold: CardHold) -> bool:
            if hold.reserved_for:
                return hold.reserved_for == task.id
            return hold.task_id in without or hold.task_id in lent

        def thin(card: CardView) -> tuple[list[CardHold], int]:
            used, total = card.used_mb or 0, card.vram_total_mb or 0
            for hold in card.holds:
                if is_gone(hold) and not hold.reserved_for and hold.task_id not in lent:
                    # Where the driver tells of no owner, the engine is taken to use what it was promised.
                    claim = total * in_percent(hold.percent) // 100
                    used -= claim if hold.measured_mb is None else hold.measured_mb
            return [hold for hold in card.holds if not is_gone(hold)], max(0, used)

        view = self.nodes[place]
        if not any(is_gone(hold) for card in view.cards for hold in card.holds):
            return OneNode(self.columns, place)
        return self._room(place, thin, without)


def _hold_of(booking: Booking) -> CardHold:
    task = booking.task
    percent = None
    if not task.whole_cards:
        percent = task.percent if task.counted else 0  # who has no port is not counted on a card (SCHED-16)
    return CardHold(
        task.tenant_id,
        percent,
        task.task_type == TaskType.INFERENCE,
        task_id=task.id,
        priority=task.priority,
        borrowed=booking.borrowed,
        gang=task.gang,
    )
