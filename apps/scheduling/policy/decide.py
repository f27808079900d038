"""The decision: who goes where, and why the rest waits (SCHED-14).

Priority first, then fair share or first come first served (SCHED-02); nothing is forced (SCHED-10). The same
for the live tick, a dry run and simulation. Deterministic: equal snapshots give equal plans.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from agent.contract.codes import Code, Reason, reason
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.borrow import Borrowing
from apps.scheduling.policy.fairness import Turns, Unit
from apps.scheduling.policy.gang import Gangs, GangShort
from apps.scheduling.policy.plan import Placed, Plan
from apps.scheduling.policy.ports import Ports
from apps.scheduling.policy.preempt import Evictions
from apps.scheduling.policy.reasons import reasons_of
from apps.scheduling.policy.shapes import Shapes
from apps.scheduling.policy.snapshot import Snapshot, TaskView


def _no_pause() -> None:
    return None


class Planner:
    """Decides in portions over one working copy, so that a loop may commit between them.

    `breathe` is called now and then while it works; exceptions of the types `fatal` end the decision.
    Any other one, of a plugin that trips over one task, goes into the plan's `broken` (RECOV-05).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        breathe: Callable[[], None] = _no_pause,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._snapshot = snapshot
        self._breathe = breathe
        self._fatal = fatal
        self._suspended = snapshot.suspended
        self._board = Board(snapshot)
        tenants = {task.tenant_id for task in snapshot.tasks}
        self._board.columns.circles.know(snapshot.friends_of(tenant) for tenant in sorted(tenants))
        self._turns = Turns(snapshot)
        self._units = iter(self._turns)
        self._left = len(snapshot.tasks)
        self._shapes = Shapes(self._board, self._turns.coming, breathe)
        self._gangs = Gangs(self._board)
        self._borrowing = Borrowing(self._board)
        self._evictions = Evictions(self._board)

    @property
    def left(self) -> int:
        """Tasks of the snapshot that no portion looked at yet."""
        return self._left

    def portion(self, limit: int, now: datetime) -> Plan | None:
        """Decide for the next tasks in order, about `limit` of them: gangs are not cut. None = all were
        decided. Room that earlier portions took is gone."""
        plan, looked_at = Plan(), 0
        while looked_at < limit and (unit := next(self._units, None)) is not None:
            looked_at += len(unit)
            self._decide(unit, plan, now, self._place_unit)
        self._left -= looked_at
        return plan if looked_at else None

    def place(self, tasks: Iterable[TaskView], now: datetime) -> Plan:
        """Find room that is free for these tasks, each for itself: where live ones could move to. Nobody is
        evicted and nothing borrowed for them."""
        plan = Plan()
        for task in tasks:
            self._decide((task,), plan, now, self._place_if_free)
        return plan

    def _decide(
        self, unit: Unit, plan: Plan, now: datetime, place: Callable[[Unit, Plan, datetime], None]
    ) -> None:
        for task in unit:
            if task.not_before is not None and task.not_before > now:
                return
        if self._suspended and (suspended := self._suspended.get(unit[0].tenant_id)) is not None:
            plan.refusals.update({task.id: [reason(Code.TENANT_SUSPENDED, why=suspended)] for task in unit})
            return
        mark = self._board.mark()
        try:
            place(unit, plan, now)
        except self._fatal:
            raise
        except Exception as error:
            self._board.undo(mark)
            plan.broken.update({task.id: error for task in unit})
            plan.refusals.update({task.id: [reason(Code.INTERNAL)] for task in unit})

    def _place_unit(self, unit: Unit, plan: Plan, now: datetime) -> None:
        task = unit[0]
        why = self._place_gang(unit, plan) if task.gang else self._place_one(task, plan)
        if not why:
            return
        # Borrowing goes first: it costs nobody a running task, and a loan ends by itself (SHARE-04).
        if not task.gang and self._borrow(task, plan):
            return
        preemptions = self._evictions.find(unit, now)
        plan.preemptions += preemptions
        if not preemptions:
            plan.refusals.update({task.id: why for task in unit})

    def _place_if_free(self, unit: Unit, plan: Plan, _: datetime) -> None:
        for task in unit:
            why = self._place_one(task, plan)
            if why:
                plan.refusals[task.id] = why

    def _place_one(self, task: TaskView, plan: Plan) -> list[Reason]:
        """Place a task, or say why it fits nowhere."""
        shape = self._shapes.of(task)
        found = shape.place(task)
        if found is None:
            return shape.why_not(task)
        place, slots, percent, ports = found
        self._book(task, place, self._board.ids_of(place, slots), percent, ports, plan)
        return []

    def _place_gang(self, unit: Unit, plan: Plan) -> list[Reason]:
        found = self._gangs.place(unit)
        if isinstance(found, GangShort):
            return self._short(found)
        for stand in found:
            task, cards = stand.task, stand.cards
            percent = None if task.whole_cards or not cards else task.percent
            self._book(task, stand.place, cards, percent, stand.ports, plan)
        return []

    def _short(self, found: GangShort) -> list[Reason]:
        short = reason(Code.GANG_SHORT, wanted=found.wanted, found=found.found)
        why = [] if found.stuck is None else reasons_of(self._board, found.stuck)
        if not why:  # every node has room for one of them, or some are not there to be placed
            return [short]
        first, *others = why
        return [first, short, *others]

    def _borrow(self, task: TaskView, plan: Plan) -> bool:
        found = self._borrowing.find(task)
        if found is None:
            return False
        ports = self._board.take(task, found.place, found.cards, borrowed=True)
        self._book(task, found.place, found.cards, None, ports, plan, borrowed=True)
        return True

    def _book(
        self,
        task: TaskView,
        place: int,
        cards: tuple[int, ...],
        percent: int | None,
        ports: Ports,
        plan: Plan,
        *,
        borrowed: bool = False,
    ) -> None:
        node = self._board.nodes[place]
        if self._snapshot.fair_weights is not None and not borrowed:
            self._turns.took(task, [card for card in node.cards if card.id in cards])
        where = node.id, node.public_id
        placed = Placed(task.id, task.version, *where, cards, percent, ports, borrowed, task.gang)
        plan.placements.append(placed)


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """The whole plan for a snapshot at a moment."""
    return Planner(snapshot).portion(len(snapshot.tasks), now) or Plan()
