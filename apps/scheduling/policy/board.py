"""The fleet's working copy while one decision is made: what is left of each node, and what was taken.

Owns asking one node about one task, booking, and taking bookings back. Never chooses a task or a node.
A node is named by its place in `nodes`, a card by its row id.
"""

from collections.abc import Collection, Sequence

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Filter, Refused, Score, load_filters, load_scores
from apps.scheduling.policy.snapshot import CardHold, NodeView, Snapshot, TaskView

NOBODY: frozenset[int] = frozenset()


class Board:
    """The working copy with the plugins that judge it. `touched` names places in the order of bookings."""

    def __init__(
        self,
        snapshot: Snapshot,
        filters: Sequence[Filter] | None = None,
        scores: Sequence[Score] | None = None,
    ) -> None:
        self.snapshot = snapshot
        self._filters = load_filters() if filters is None else filters
        chosen = load_scores() if scores is None else scores
        self._scores = [(score, snapshot.weights.get(score.name, 1.0)) for score in chosen]
        ordered = sorted(snapshot.nodes, key=lambda node: (node.name, node.id))
        self.nodes: tuple[NodeView, ...] = tuple(ordered)
        self.place_of = {node.id: place for place, node in enumerate(ordered)}
        self.rooms = [NodeRoom(view, place, snapshot.reserve) for place, view in enumerate(ordered)]
        self.touched: list[int] = []
        # Tasks (row ids) that have room kept for them: for each of them the nodes look different.
        self.keep_room = frozenset(
            hold.reserved_for for node in ordered for card in node.cards for hold in card.holds
        ) - {0}
        self._booked: list[tuple[int, NodeRoom]] = []  # (place, the node as it was before)

    def judge(
        self,
        task: TaskView,
        place: int,
        without: Collection[int] = NOBODY,
        *,
        lent: Collection[int] = NOBODY,
    ) -> "tuple[int, ...] | Refused":
        """The cards (row ids) that the task would get there by now, or the first check that refuses it.

        `without`: row ids of tasks whose holds are thought away. Room kept for the task itself counts as
        nothing, room kept for others as theirs. `lent`: sleepers whose cards it would borrow; their tenants
        stay on the card for the red line (SHARE-05).
        """
        for card in self.rooms[place].cards:
            for hold in card.holds:
                if hold.task_id in lent and not self.snapshot.may_share(task.tenant_id, hold.tenant_id):
                    return Refused(Code.RED_LINE)
        found = self.judge_room(task, _thinned(self.rooms[place], task, {*without, *lent}))
        return found if isinstance(found, Refused) else tuple(card.view.id for card in found)

    def places(self, task: TaskView, below: int | None = None) -> list[int]:
        """Places where the task could stand now; with `below`, where it could if every preemptible hold of
        a lower priority than that were gone."""
        found = []
        for place, room in enumerate(self.rooms):
            gone: frozenset[int] = NOBODY
            if below is not None:
                gone = frozenset(
                    hold.task_id
                    for card in room.cards
                    for hold in card.holds
                    if hold.priority < below and (hold.preemptible or hold.leaving)
                )
            if not isinstance(self.judge(task, place, gone), Refused):
                found.append(place)
        return found

    def ranked(self, task: TaskView, *, beside: Collection[int] = ()) -> list[int]:
        """Places that take the task now, best first; `beside` are those of its gang's other tasks."""
        rated = []
        for place, room in enumerate(self.rooms):
            cards = self.judge_room(task, room)
            if not isinstance(cards, Refused):
                rated.append((-self.score(task, room, cards, by_group=True), place))
        return [place for _, place in sorted(rated)]

    def holds(self, place: int, card: int) -> tuple[CardHold, ...]:
        """What is held on the card by now, what was taken in this decision too."""
        return tuple(self._card(place, card).holds)

    def take(
        self, task: TaskView, place: int, cards: Sequence[int], *, borrowed: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Book a task that `judge` let in; answers its (container port, host port)s. Holds that were thought
        away stay where they are. `borrowed`: the cards are sleepers' (SHARE-04)."""
        room = self.rooms[place]
        self._booked.append((place, room.copy()))
        self.touched.append(place)
        return room.take(task, [self._card(place, card) for card in cards], borrowed=borrowed)

    def version(self, place: int) -> int:
        """A number that is another one after each booking there, and after each that was taken back."""
        return self.rooms[place].version

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._booked)

    def undo(self, mark: int) -> None:
        """Take back all that was booked since, the latest first."""
        while len(self._booked) > mark:
            place, before = self._booked.pop()
            before.version = self.rooms[place].version + 1
            self.rooms[place] = before
            self.touched.append(place)

    def judge_room(self, task: TaskView, room: NodeRoom) -> "list[CardRoom] | Refused":
        """The cards that the task would get on this node, or why none."""
        if task.id in self.keep_room:
            room = _thinned(room, task, NOBODY)
        cards = list(room.cards) if task.gpu_required else []
        for plugin in self._filters:
            left = plugin.check(task, room, cards, self.snapshot)
            if isinstance(left, Refused):
                return left
            cards = left
        return sorted(cards, key=_preference)[: task.gpu_required]

    def score(self, task: TaskView, room: NodeRoom, cards: list[CardRoom], *, by_group: bool) -> float:
        """Weighted sum; without `by_group` those that depend on the group count as the full 1."""
        total = 0.0
        for plugin, weight in self._scores:
            full = plugin.by_group and not by_group
            total += weight * (1.0 if full else plugin.measure(task, room, cards))
        return total

    def _card(self, place: int, card: int) -> CardRoom:
        return next(room for room in self.rooms[place].cards if room.view.id == card)


def _thinned(room: NodeRoom, task: TaskView, without: Collection[int]) -> NodeRoom:
    """The node less the room kept for the task and the holds that are thought away."""
    gone = [(card, [hold for hold in card.holds if not _is_gone(hold, task, without)]) for card in room.cards]
    if any(len(left) < len(card.holds) for card, left in gone):
        room = room.copy()
        for card, (_, left) in zip(room.cards, gone, strict=True):
            card.set(left)
    return room


def _is_gone(hold: CardHold, task: TaskView, without: Collection[int]) -> bool:
    if hold.reserved_for:
        return hold.reserved_for == task.id
    return hold.task_id in without


def _preference(card: CardRoom) -> tuple[int, int, int]:
    """The card that is fullest and still fits first, so that whole ones stay whole."""
    free = card.free_mb
    return (-card.promised_percent, 0 if free is None else free, card.view.index)
