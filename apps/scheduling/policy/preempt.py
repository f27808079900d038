"""Room for those who wait, taken from work of lower priority (SCHED-11).

Owns who may be evicted and the promise that nobody is evicted in vain: a victim is of strictly lower priority
and allows it, its place is kept for whom it was taken for, and a task (a gang as a whole) that could not be
placed even then evicts nobody. Who has room kept makes no second preemption, and who made one lately only
waits for those who leave anyway.

Where to look is asked of many nodes at once, of the fleet as it would be without all whom a priority could
evict; a node is judged by itself only where that may help.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

from apps.scheduling.policy.ask import ShapeKey, shape_of
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.clearing import (
    NODES_A_SEARCH,
    Cleared,
    Company,
    Effort,
    Search,
    fleet_without,
    mover,
    places_of,
)
from apps.scheduling.policy.fairness import Unit
from apps.scheduling.policy.plan import Preemption
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import CardHold, TaskView

# In one decision; who comes too late is asked again in the next one.
PREEMPTIONS = 64  # each is a transaction of its own
QUESTIONS = 1_000
SEARCHES = 32
LEVELS = 4

Kind = tuple[ShapeKey, int, bool]  # of one shape and priority, and whether they may evict now


class Evictions:
    """Plans preemptions in one decision."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._effort = Effort(QUESTIONS)
        self._gangs: dict[str, dict[int, CardHold]] | None = None
        self._gone: frozenset[int] = frozenset()  # evicted by this decision
        self._planned = 0
        self._pause_since = datetime.max.replace(tzinfo=UTC)
        self._searches: dict[Kind, Search] = {}
        self._levels: dict[int, Board] = {}  # by priority, the fleet without those it could evict
        self._in_vain: set[frozenset[tuple[Kind, int]]] = set()

    def find(self, unit: Unit, now: datetime) -> list[Preemption]:
        """What must go for a task, or for all of a gang, that fits nowhere; empty = it waits. What is planned
        is booked: later ones of this decision do not get that room."""
        if self._planned >= PREEMPTIONS:
            return []
        lowest = self._board.columns.lowest
        if lowest is None or lowest >= unit[0].priority:
            return []
        if any(task.id in self._board.keep_room or not task.gpu_required for task in unit):
            return []
        self._pause_since = now - timedelta(seconds=self._board.snapshot.preemption_pause_s)
        key = frozenset(Counter(self._kind(task) for task in unit).items())
        if key in self._in_vain:
            return []
        mark, gone = self._board.mark(), self._gone
        planned: list[Preemption] = []
        for task in unit:
            made = self._make_room(task, planned)
            if made is None:
                self._board.undo(mark)
                self._gone = gone
                self._in_vain.add(key)
                return []
            planned.append(made)
        self._planned += len(planned)
        return planned

    def _make_room(self, task: TaskView, others: list[Preemption]) -> Preemption | None:
        cleared = self._as_it_is(task, others) if task.gang else None
        if cleared is None:
            cleared = self._clear(task)
        if cleared is None:
            return None
        self._board.take(task, cleared.place, cleared.cards)
        victims = cleared.movers - self._gone
        self._gone |= victims
        return Preemption(
            task_id=task.id,
            version=task.version,
            node_id=self._board.nodes[cleared.place].id,
            victims=tuple(sorted(victims)),
            cards=cleared.cards,
            percent=None if task.whole_cards else task.percent,
            gang=task.gang,
        )

    def _as_it_is(self, task: TaskView, others: list[Preemption]) -> Cleared | None:
        """One of a gang may fit where only its siblings do not: its place is kept as well."""
        for place in self._board.ranked(task, beside=[self._board.place_of[one.node_id] for one in others]):
            cards = self._board.judge(task, place)
            if not isinstance(cards, Refused):
                return Cleared(place, cards, frozenset())
        return None

    def _clear(self, task: TaskView) -> Cleared | None:
        kind = self._kind(task)
        search = self._searches.get(kind)
        if search is None:
            if len(self._searches) >= SEARCHES:
                return None
            places = list(islice(self._promising(task), NODES_A_SEARCH))
            search = Search(self._board, task, places, lambda hold: self._moves(hold, task))
            if places:
                self._searches[kind] = search
        return search.best(task, self._effort)

    def _promising(self, task: TaskView) -> Iterator[int]:
        """Places where somebody may go, and the task would fit if all did who are of lower priority."""
        for place in places_of(self._level(task.priority), task, self._board):
            holds = (hold for card in self._board.nodes[place].cards for hold in card.holds)
            if any(self._moves(hold, task) is not None for hold in holds):
                yield place

    def _level(self, priority: int) -> Board:
        """The nodes where a priority could evict somebody, without those. Where many priorities are asked,
        that of a higher one serves: it shows a little more than there is."""
        higher = [level for level in self._levels if level >= priority]
        if higher and (priority in higher or len(self._levels) >= LEVELS):
            return self._levels[min(higher)]

        def goes(hold: CardHold) -> bool:
            return hold.priority < priority and (hold.preemptible or hold.leaving) and not hold.reserved_for

        found = self._levels[priority] = fleet_without(self._board, goes)
        return found

    def _kind(self, task: TaskView) -> Kind:
        return (shape_of(task), task.priority, self._rests(task))

    def _rests(self, task: TaskView) -> bool:
        """Whether others were evicted for it only lately."""
        return task.made_room_at is not None and task.made_room_at > self._pause_since

    def _moves(self, hold: CardHold, task: TaskView) -> Company | None:
        if not self._may_evict(hold, task):
            return None
        if hold.leaving or hold.task_id in self._gone:
            return ()
        if not hold.gang:
            return (mover(hold),)
        gang = self._all_gangs()[hold.gang].values()
        if not all(self._may_evict(one, task) for one in gang):
            return None
        return tuple(sorted(mover(one) for one in gang))

    def _may_evict(self, hold: CardHold, task: TaskView) -> bool:
        if hold.reserved_for or not hold.task_id or hold.priority >= task.priority:
            return False
        if hold.leaving:
            return True
        if self._rests(task):
            return False
        # What a sleeper was promised stays protected from tenants that it does not share with.
        protected = hold.sleeping and not self._board.snapshot.may_share(task.tenant_id, hold.tenant_id)
        return hold.preemptible and not protected

    def _all_gangs(self) -> dict[str, dict[int, CardHold]]:
        """All holds of gangs, by gang and task."""
        if self._gangs is None:
            self._gangs = {}
            for node in self._board.nodes:
                for hold in [hold for card in node.cards for hold in card.holds]:
                    if hold.gang and not hold.reserved_for:
                        self._gangs.setdefault(hold.gang, {})[hold.task_id] = hold
        return self._gangs
