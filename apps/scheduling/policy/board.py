"""The fleet's working copy while one decision is made: what is left of each node, and what was taken.

Owns asking one node about one task, booking, and taking bookings back. Never chooses a task or a node.
A node is named by its place in `nodes`, a card by its row id.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask, ShapeKey, shape_of
from apps.scheduling.policy.choice import choose
from apps.scheduling.policy.lanes import LIVE, Columns
from apps.scheduling.policy.questions import Fits, Question, Stretches
from apps.scheduling.policy.registry import (
    Filter,
    Of,
    Refused,
    load_companies,
    load_filters,
    load_scores,
)
from apps.scheduling.policy.rooms import Booking, CardRoom, NodeRoom, Ports, as_one, is_host_wide
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Snapshot, TaskView

NOBODY: frozenset[int] = frozenset()

_live = attrgetter(*LIVE)


class Board:
    """The working copy with the plugins that judge it. `touched` names places in the order of bookings;
    `keep_room`: tasks (row ids) that have room kept for them, for each of which the nodes look different."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._filters = load_filters()
        self._scores = [(score, snapshot.weights.get(score.name, 1.0)) for score in load_scores()]
        companies = [(company, snapshot.weights.get(company.name, 1.0)) for company in load_companies()]
        self._companies = [(one.measure, weight) for one, weight in companies if weight and not one.gang]
        self._gang_companies = [(one.measure, weight) for one, weight in companies if weight]
        self.columns = Columns(snapshot.nodes, snapshot.reserve)
        self.nodes: tuple[NodeView, ...] = self.columns.nodes
        self.place_of = {node.id: place for place, node in enumerate(self.nodes)}
        self.touched: list[int] = []
        self.versions = [0] * len(self.nodes)
        self._kept: dict[int, list[int]] = defaultdict(list)  # task -> places where room is kept for it
        for place, node in enumerate(self.nodes):
            for card in node.cards:
                for hold in card.holds:
                    if hold.reserved_for:
                        self._kept[hold.reserved_for].append(place)
        self.keep_room = frozenset(self._kept)
        self._rooms: list[NodeRoom | None] = [None] * len(self.nodes)
        self._booked: list[int] = []  # places, in order
        self._bookings: dict[int, list[Booking]] = defaultdict(list)
        self._questions: dict[ShapeKey, Question] = {}
        self._stretches = Stretches(self.columns)
        self._live = [getattr(self.columns, name) for name in LIVE]
        self._grouped: set[tuple[int, int]] = set()  # (place, group) of bookings

    # --- asking

    def question(self, task: TaskView) -> Question:
        """What is asked for tasks of this shape."""
        key = shape_of(task)
        found = self._questions.get(key)
        if found is None:
            ask = Ask(task, self.snapshot)
            found = Question(ask, self.columns, self._filters, self._scores, self._stretches)
            self._questions[key] = found
        return found

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
        stay on the card for the red line (SHARE-05), and what they use there stays in use.
        """
        if lent and self._crosses_the_line(task, place, lent):
            return Refused(Code.RED_LINE)
        found = self._judge_room(self.question(task), self._room_for(task, place, without, lent))
        return found if isinstance(found, Refused) else tuple(card.view.id for card in found)

    def refusal(self, task: TaskView, place: int) -> Refused | None:
        """Why the node as it is does not take the task, room that is kept for the task itself included."""
        found = self._judge_room(self.question(task), self.room(place))
        return found if isinstance(found, Refused) else None

    def fit(self, task: TaskView, place: int) -> tuple[float, tuple[int, ...]] | None:
        """(Its score without regard to company, the places of the cards in the node), None where it is
        refused. For a node that passed the filters of facts."""
        return self.fit_of(self.question(task), task, place)

    def fit_of(self, question: Question, task: TaskView, place: int) -> tuple[float, tuple[int, ...]] | None:
        """The same where the question is at hand."""
        ask = question.ask
        room = self._room_for(task, place, NOBODY, NOBODY) if task.id in self._kept else self.room(place)
        for fits in question.node_filters:
            if not fits(ask, room):
                return None
        wanted = ask.cards
        left = question.passing_facts(place, room.cards) if wanted else []
        for fits in question.card_filters:
            left = [card for card in left if fits(ask, card)]
            if len(left) < wanted:
                return None
        for fits in question.cards_filters:
            stays = fits(ask, [card.model for card in left], [True] * len(left))
            left = [card for card, stay in zip(left, stays, strict=True) if stay]
            if len(left) < wanted:
                return None
        cards = choose(wanted, left)
        return self._score(question, room, cards), tuple([card.slot for card in cards])

    def places(self, task: TaskView, below: int | None = None, limit: int | None = None) -> list[int]:
        """Places where the task could stand now; with `below`, where it could if every hold of a lower
        priority than that were gone which is preemptible or leaves anyway. At most `limit` of them."""
        found: list[int] = []
        if below is None:
            found = sorted(self.question(task).find(len(self.nodes)).places)
            return found[:limit]
        for place in self.question(task).possible():
            if len(found) == limit:
                break
            holds = [hold for card in self.nodes[place].cards for hold in card.holds]
            gone = {
                hold.task_id
                for hold in holds
                if hold.priority < below and (hold.preemptible or hold.leaving) and not hold.reserved_for
            }
            if not isinstance(self.judge(task, place, gone), Refused):
                found.append(place)
        return found

    def ranked(self, task: TaskView, *, beside: Collection[int] = ()) -> list[int]:
        """Places that take the task now, best first; `beside` are those of its gang's other tasks."""
        fits = self.find(task, len(self.nodes))
        others = [self.nodes[place] for place in beside]
        company = self._gang_companies if task.gang else self._companies
        rated = []
        for place, score in zip(fits.places, fits.scores, strict=True):
            room = self.room(place)
            more = sum(weight * measure(task, room, others) for measure, weight in company)
            rated.append((-score - more, place))
        return [place for _, place in sorted(rated)]

    def find(self, task: TaskView, most: int) -> Fits:
        """The nodes that take the task by now, at most so many of the best and those where room is kept
        for it."""
        fits = self.question(task).find(most)
        for place in dict.fromkeys(self._kept.get(task.id, ())):
            if place not in fits.places and not isinstance(self.judge(task, place), Refused):
                own = self.fit(task, place)
                if own is not None:
                    fits.places.append(place)
                    fits.scores.append(own[0])
                    fits.slots.append(-1)
        return fits

    def company(self, task: TaskView, place: int) -> float:
        """What the company of its group takes off the score there; 0 where it has none."""
        group = task.group_id
        if (place, group) not in self._grouped and group not in self.nodes[place].siblings:
            return 0.0
        room = self.room(place)
        return sum(weight * (measure(task, room, ()) - 1.0) for measure, weight in self._companies)

    def holds(self, place: int, card: int) -> tuple[CardHold, ...]:
        """What is held on the card by now, what was taken in this decision too."""
        slot = self.slot_of(place, card)
        return (*self.nodes[place].cards[slot].holds, *self._booked_on(place, slot))

    def version(self, place: int) -> int:
        """A number that is another one after each booking there, and after each that was taken back."""
        return self.versions[place]

    def slot_of(self, place: int, card: int) -> int:
        """Where in its node a card (row id) stands."""
        return next(slot for slot, view in enumerate(self.nodes[place].cards) if view.id == card)

    def room(self, place: int) -> NodeRoom:
        """The node by itself."""
        found = self._rooms[place]
        if found is None:
            found = self._rooms[place] = NodeRoom(
                self.nodes[place], place, self.snapshot.reserve, self.columns.limit
            )
        return found

    # --- booking

    def take(self, task: TaskView, place: int, cards: Sequence[int], *, borrowed: bool = False) -> Ports:
        """Book a task that `judge` let in; answers its (container port, host port)s. Holds that were thought
        away stay where they are. `borrowed`: the cards are sleepers' (SHARE-04)."""
        return self.book(task, place, tuple(self.slot_of(place, card) for card in cards), borrowed=borrowed)

    def book(self, task: TaskView, place: int, slots: tuple[int, ...], *, borrowed: bool = False) -> Ports:
        """The same with the cards' places in the node."""
        room = self.room(place)
        booking = Booking(task, slots, borrowed, room.ports_for(task))
        room.add(booking)
        self._bookings[place].append(booking)
        self._booked.append(place)
        self._grouped.add((place, task.group_id))
        self._mirror(room, slots)
        self._join(task, place, slots, room)
        return booking.ports

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._booked)

    def undo(self, mark: int) -> None:
        """Take back all that was booked since, the latest first."""
        while len(self._booked) > mark:
            place = self._booked.pop()
            last = self._bookings[place].pop()
            for _, host in last.ports:
                self.columns.more_ports[host].discard(place)
            self._rooms[place] = None
            room = self.room(place)
            for booking in self._bookings[place]:
                room.add(booking)
            self._leave(last, place, room)
            self._mirror(room, range(len(room.cards)))

    def _mirror(self, room: NodeRoom, slots: Iterable[int]) -> None:
        """Write a node's numbers into the columns."""
        columns, place = self.columns, room.place
        for slot in slots:
            for column, value in zip(self._live, _live(room.cards[slot]), strict=True):
                column[slot, place] = value
        columns.begun[place] = room.begun
        columns.tasks[place] = room.tasks
        columns.cap_left[place] = room.cap_left
        columns.ports_left[place] = room.ports_left
        self.versions[place] += 1
        self.touched.append(place)

    def _join(self, task: TaskView, place: int, slots: tuple[int, ...], room: NodeRoom) -> None:
        columns, tenant = self.columns, task.tenant_id
        lanes = [slot * columns.count + place for slot in slots]
        columns.on_cards[0].extend(lanes)
        columns.on_cards[1].extend([tenant] * len(lanes))
        columns.living[0].append(place)
        columns.living[1].append(tenant)
        wide = is_host_wide(task, room.ipc_apart)
        if wide:
            columns.wide[0].append(place)
            columns.wide[1].append(tenant)
        for port in [host for _, host in task.ports if host]:
            columns.more_ports[port].add(place)
        for company in columns.companies.values():
            if tenant not in company.friends:
                for slot in slots:
                    company.cards[slot, place] = False
                company.living[place] = False
                if wide:
                    company.wide[place] = False

    def _leave(self, last: Booking, place: int, room: NodeRoom) -> None:
        columns = self.columns
        del columns.on_cards[0][len(columns.on_cards[0]) - len(last.slots) :]
        del columns.on_cards[1][len(columns.on_cards[1]) - len(last.slots) :]
        for pair in [columns.living] + [columns.wide] * is_host_wide(last.task, room.ipc_apart):
            del pair[0][-1], pair[1][-1]
        for company in columns.companies.values():
            for slot in last.slots:
                company.cards[slot, place] = room.cards[slot].has_friends_only(company.friends)
            company.living[place] = room.has_friends_only(company.friends)
            company.wide[place] = room.is_wide_for_friends_only(company.friends)

    # --- one node

    def _judge_room(self, question: Question, room: NodeRoom) -> "list[CardRoom] | Refused":
        ask = question.ask
        left = list(room.cards) if ask.cards else []
        for one in question.filters:
            if one.of is Of.NODE or one.of is Of.NODE_FACTS:
                thing = room if one.of is Of.NODE else room.facts
                if not one.fits(ask, thing):
                    short = 0.0 if one.short is None else float(one.short(ask, thing))
                    return Refused(one.code(ask), dict(one.tell(ask, thing, None, 0)), short)
                continue
            stay = _staying(one, question, left)
            if (left and not stay) if one.empties else len(stay) < ask.cards:
                return _refused(one, question, room, left, stay)
            left = stay
        return choose(ask.cards, left)

    def _score(self, question: Question, room: NodeRoom, cards: list[CardRoom]) -> float:
        ask, chosen, total = question.ask, as_one(cards), 0.0
        for measure, weight in question.scores:
            total += weight * measure(ask, room, chosen)
        return total

    # --- thinking away

    def _crosses_the_line(self, task: TaskView, place: int, lent: Collection[int]) -> bool:
        return any(
            hold.task_id in lent and not self.snapshot.may_share(task.tenant_id, hold.tenant_id)
            for card in self.nodes[place].cards
            for hold in card.holds
        )

    def _booked_on(self, place: int, slot: int) -> list[CardHold]:
        return [
            CardHold(
                booking.task.tenant_id,
                _held_percent(booking.task),
                booking.task.task_type == "inference",
                task_id=booking.task.id,
                priority=booking.task.priority,
                borrowed=booking.borrowed,
                gang=booking.task.gang,
            )
            for booking in self._bookings.get(place, ())
            if slot in booking.slots
        ]

    def _room_for(
        self, task: TaskView, place: int, without: Collection[int], lent: Collection[int]
    ) -> NodeRoom:
        """The node less the room kept for the task and the holds that are thought away."""

        def is_gone(hold: CardHold) -> bool:
            if hold.reserved_for:
                return hold.reserved_for == task.id
            return hold.task_id in without or hold.task_id in lent

        def thin(card: CardView) -> tuple[list[CardHold], int]:
            used, total = card.used_mb or 0, card.vram_total_mb or 0
            for hold in card.holds:
                if is_gone(hold) and not hold.reserved_for and hold.task_id not in lent:
                    # Where the driver tells of no owner, the engine is taken to use what it was promised.
                    claim = total if hold.percent is None else total * hold.percent // 100
                    used -= claim if hold.measured_mb is None else hold.measured_mb
            return [hold for hold in card.holds if not is_gone(hold)], max(0, used)

        view = self.nodes[place]
        if not any(is_gone(hold) for card in view.cards for hold in card.holds):
            return self.room(place)
        room = NodeRoom(view, place, self.snapshot.reserve, self.columns.limit, thin=thin)
        for booking in self._bookings.get(place, ()):
            if booking.task.id not in without:
                room.add(booking)
        return room


def _held_percent(task: TaskView) -> int | None:
    if task.whole_cards:
        return None
    return task.percent if task.counted else 0  # what has no port is not counted on its card (SCHED-16)


def _staying(one: Filter, question: Question, left: list[CardRoom]) -> list[CardRoom]:
    ask = question.ask
    if one.of is Of.CARD:
        return [card for card in left if one.fits(ask, card)]
    if one.of is Of.CARD_FACTS:
        return [card for card in left if one.fits(ask, card.facts)]
    stays = one.fits(ask, [card.model for card in left], [True] * len(left))
    return [card for card, stays_there in zip(left, stays, strict=True) if stays_there]


def _refused(
    one: Filter, question: Question, room: NodeRoom, left: list[CardRoom], stay: list[CardRoom]
) -> Refused:
    """With the numbers of the card that misses by the least."""
    ask = question.ask
    failing = [card for card in left if card not in stay]
    code = one.code(ask)
    if one.short is None or not failing:
        told = one.tell(ask, room, failing[0] if failing else None, len(stay))
        missing = ask.cards - len(stay) if code == Code.CARDS_SHORT else 0
        return Refused(code, dict(told), float(missing))
    by, _, card = min((one.short(ask, card), card.slot, card) for card in failing)
    return Refused(code, dict(one.tell(ask, room, card, len(stay))), float(by))
