"""Replays work against a fleet in a time of its own: events, decisions at their period, and what follows.

Owns the order of what happens. Where work goes is the scheduler's own `decide`; nothing here places, evicts
or lends of its own accord. Equal fleets, work and rules give equal records.
"""

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import IntEnum

from msgspec.structs import replace

from agent.contract.codes import Reason
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Placed, Preemption
from apps.scheduling.policy.snapshot import Reserve, Snapshot, Thresholds
from apps.scheduling.simulation.fleet import Fleet
from apps.scheduling.simulation.occupancy import Kept, Loan, Occupancy, Stand
from apps.scheduling.simulation.record import Ended, Eviction, Moment, Record, Refusal, Stay, Waiting
from apps.scheduling.simulation.workload import Item, Workload, view_of

START = datetime(2026, 1, 1, tzinfo=UTC)  # what second 0 is called; nothing depends on it


@dataclass(frozen=True, slots=True)
class Rules:
    """An installation's settings that a replay follows, in seconds and percent. `stop_s`: how long what is
    stopped still holds its room."""

    reserve: Reserve = field(default_factory=Reserve)
    thresholds: Thresholds = field(default_factory=Thresholds)
    weights: Mapping[str, float] = field(default_factory=dict)
    fair_share: bool = False
    period_s: float = 1.0
    silent_s: float = 30.0
    stop_s: float = 10.0
    hold_s: float = 120.0
    pause_s: float = 600.0
    loan_max_s: float = 3600.0


class Kind(IntEnum):
    """What happens, in the order of what happens at one moment: room is freed before it is asked for."""

    END = 1
    RELEASE = 2
    LOAN_END = 3
    WAKE = 4
    SLEEP = 5
    SILENT = 6
    HEARD = 7
    GIVE_UP = 8
    REST = 9
    ARRIVE = 10
    LOOK = 11


class DecisionFailed(Exception):
    """The decision tripped over a task: a fault of the program, which a replay does not hide."""

    def __init__(self, task: str, at_s: float, error: Exception) -> None:
        super().__init__(f"The decision failed over {task} at {at_s:g} s: {type(error).__name__}: {error}")


class Replay:
    """One run. `each` is told of every snapshot that a decision was made on, for whoever watches."""

    def __init__(
        self,
        fleet: Fleet,
        workload: Workload,
        rules: Rules,
        *,
        each: Callable[[Snapshot], None] = lambda snapshot: None,
    ) -> None:
        self._workload = workload
        self._tenants = workload.tenants
        self._rules = rules
        self._period_s = rules.period_s if workload.period_s is None else workload.period_s
        self._each = each
        self.places = Occupancy(fleet.machines, workload.tenants, START)
        self.record = Record()
        self._now_s = 0.0
        self._events: list[tuple[float, Kind, int, Callable[[], None]]] = []
        self._count = 0
        self._look_at: float | None = None
        self._standing: dict[int, Stand] = {}  # by item: its present attempt
        self._stays: dict[Stand, Stay] = {}
        self._kept: dict[int, Kept] = {}
        self._attempts: dict[int, int] = {}
        self._made_room: dict[int, datetime] = {}  # by item: when others were last evicted for it
        self._rests: dict[int, float] = {}  # by item: until when it is evicted no second time
        self._shared = {tenant.id: tenant.shares_with for tenant in workload.tenants.values()}
        for item in workload.items:
            self._at(item.at_s, Kind.ARRIVE, lambda item=item: self._arrive(item))  # type: ignore[misc]
        for machine in fleet.machines:
            for first, last in machine.offline:
                silent_s = first + rules.silent_s if first else 0.0  # at the start it was not heard of before
                if silent_s < last:
                    self._offline(machine.view.id, silent_s, last)

    def run(self, until_s: float | None = None) -> Record:
        """Let happen what happens until then, without it as long as anything does. Raises DecisionFailed."""
        limit = math.inf if until_s is None else until_s
        while self._events and self._events[0][0] <= limit:
            self._now_s, kind, _, happen = heapq.heappop(self._events)
            happen()
            if kind != Kind.LOOK:
                self._look_soon()
            self._note_moment()
        self.record.until_s = self._now_s if until_s is None else until_s
        return self.record

    # --- time ---

    @property
    def _now(self) -> datetime:
        return START + timedelta(seconds=self._now_s)

    def _at(self, at_s: float, kind: Kind, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, kind, self._count, happen))

    def _look_soon(self) -> None:
        """The scheduler looks at its next beat, if somebody waits."""
        if not self.record.waiting or self._look_at is not None:
            return
        at = self._now_s
        if self._period_s:
            at = max(at, math.ceil(at / self._period_s) * self._period_s)
        self._look_at = at
        self._at(at, Kind.LOOK, self._look)

    def _note_moment(self) -> None:
        use, moments = self.places.all, self.record.moments
        now = Moment(self._now_s, use.cards.value, use.memory_mb.value, len(self.record.waiting))
        if moments and moments[-1].at_s == now.at_s:
            moments[-1] = now
        else:
            moments.append(now)

    # --- what happens by itself ---

    def _arrive(self, item: Item) -> None:
        self._wait(item)
        for first, last in item.work.sleeps:
            if first >= self._now_s:
                self._at(first, Kind.SLEEP, lambda: self._sleep(item))
                self._at(last, Kind.WAKE, lambda: self._wake(item))

    def _wait(self, item: Item) -> None:
        view = view_of(item, self._tenants[item.work.tenant], self._attempts.get(item.id, 0), START)
        view = replace(view, made_room_at=self._made_room.get(item.id))
        self.record.waiting[item.id] = Waiting(item, view, self._now_s)

    def _end(self, stand: Stand) -> None:
        if not stand.leaving and stand in self._stays and self._stays[stand].until_s is None:
            self._leave(stand, Ended.FINISHED)

    def _sleep(self, item: Item) -> None:
        stand = self._standing.get(item.id)
        if stand is not None and not stand.leaving:
            stand.sleeping = True
            self.places.changed(stand.node, stand.cards, self._now_s)

    def _wake(self, item: Item) -> None:
        stand = self._standing.get(item.id)
        if stand is None or not stand.sleeping or stand.leaving:
            return
        stand.wakes = self._now_s
        self._wake_if_free(stand)

    def _wake_if_free(self, stand: Stand) -> None:
        """It wakes once none of its cards is lent (SLEEP-05)."""
        if stand.wakes is not None and not any(loan.lender is stand for loan in self.places.loans_of(stand)):
            if stand.wakes < self._now_s:
                self.record.wakes.append(self._now_s - stand.wakes)
            stand.sleeping, stand.wakes = False, None
        self.places.changed(stand.node, stand.cards, self._now_s)

    def _offline(self, node: int, first: float, last: float) -> None:
        self._at(first, Kind.SILENT, lambda: self._lose(node))
        self._at(last, Kind.HEARD, lambda: self.places.set_online(node, True))

    def _lose(self, node: int) -> None:
        self.places.set_online(node, False)
        for stand in self.places.on_node(node):
            if not stand.leaving:
                self._leave(stand, Ended.NODE_LOST)

    # --- leaving ---

    def _leave(self, stand: Stand, why: Ended) -> None:
        """It ends here; unless it is finished its task waits again. Its gang goes with it, and who borrows
        from it has nothing to stand on."""
        self._stays[stand].ended, self._stays[stand].until_s = why, self._now_s
        stand.leaving = True
        del self._standing[stand.item.id]
        if why != Ended.FINISHED:
            self._wait(stand.item)
        self.places.changed(stand.node, stand.cards, self._now_s)
        stops = self._rules.stop_s if why in (Ended.PREEMPTED, Ended.LOAN_ENDED) else 0.0
        self._at(self._now_s + stops, Kind.RELEASE, lambda: self._release(stand))
        for loan in self.places.loans_of(stand):
            if loan.lender is stand and not loan.borrower.leaving:
                self._leave(loan.borrower, Ended.LOAN_ENDED)
        if stand.item.gang and why != Ended.FINISHED:
            for other in list(self._standing.values()):
                if other.item.gang == stand.item.gang and not other.leaving:
                    self._leave(other, why)

    def _release(self, stand: Stand) -> None:
        loans = self.places.loans_of(stand)
        for loan in loans:
            if loan.ended_s is None:
                self.places.end_loan(loan, self._now_s)
        self.places.remove(stand, self._now_s)
        for loan in loans:
            if loan.lender is not stand:
                self._wake_if_free(loan.lender)

    def _end_loan(self, loan: Loan) -> None:
        """Its time is up: the borrower stops first, then the lender may wake (SHARE-04)."""
        if loan.ended_s is None and not loan.borrower.leaving:
            self._leave(loan.borrower, Ended.LOAN_ENDED)

    # --- decisions ---

    def _look(self) -> None:
        self._look_at = None
        waiting = self.record.waiting
        if not waiting:
            return
        snapshot = Snapshot(
            tasks=tuple(waiting[item].view for item in sorted(waiting)),
            nodes=self.places.views(self._now_s),
            shared=self._shared,
            reserve=self._rules.reserve,
            weights=self._rules.weights,
            thresholds=self._rules.thresholds,
            fair_weights={tenant.id: tenant.weight for tenant in self._tenants.values()}
            if self._rules.fair_share
            else None,
            preemption_pause_s=self._rules.pause_s,
        )
        plan = decide(snapshot, self._now)
        for item_id, error in plan.broken.items():
            raise DecisionFailed(waiting[item_id].item.name, self._now_s, error) from error
        self._each(snapshot)
        self.record.decisions += 1
        for placed in plan.placements:
            self._place(placed)
        for preemption in plan.preemptions:
            self._make_room(preemption)
        for item_id, reasons in plan.refusals.items():
            self._refuse(waiting[item_id], reasons)

    def _place(self, placed: Placed) -> None:
        waited = self.record.waiting.pop(placed.task_id)
        item = waited.item
        self._attempts[item.id] = self._attempts.get(item.id, 0) + 1
        stand = Stand(
            item,
            self._tenants[item.work.tenant],
            self._attempts[item.id],
            placed.node_id,
            placed.cards,
            placed.percent,
            tuple(host for _, host in placed.host_ports),
            self._now_s,
            borrowed=placed.borrowed,
            preemptible_from_s=self._rests.get(item.id, 0.0),
        )
        lenders = list(self.places.lenders(placed.cards)) if placed.borrowed else []
        self._drop_kept(item.id)
        self.places.add(stand)
        self._standing[item.id] = stand
        self._stays[stand] = Stay(stand, self._now_s - waited.since_s)
        self.record.stays.append(self._stays[stand])
        for lender, card in lenders:
            self._lend(lender, card, stand)
        if item.duration_s is not None:
            self._at(self._now_s + item.duration_s, Kind.END, lambda: self._end(stand))

    def _lend(self, lender: Stand, card: int, borrower: Stand) -> None:
        limit = lender.tenant.loan_max_s
        until = self._now_s + (self._rules.loan_max_s if limit is None else limit)
        loan = Loan(lender, card, borrower, self._now_s, until)
        self.places.lend(loan)
        self._at(until, Kind.LOAN_END, lambda: self._end_loan(loan))

    def _make_room(self, preemption: Preemption) -> None:
        waiting = self.record.waiting[preemption.task_id]
        item = waiting.item
        self._drop_kept(item.id)
        tenant = self._tenants[item.work.tenant]
        kept = Kept(item, tenant, preemption.node_id, preemption.cards, preemption.percent)
        self._kept[item.id] = kept
        self.places.keep(kept)
        self._at(self._now_s + self._rules.hold_s, Kind.GIVE_UP, lambda: self.places.give_up(kept))
        victims = [stand for victim in preemption.victims if (stand := self._standing.get(victim))]
        for stand in victims:
            self._rest(stand.item)
        for stand in victims:
            if not stand.leaving:  # with its gang
                self._leave(stand, Ended.PREEMPTED)
        if victims:
            items = tuple(stand.item for stand in victims)
            made = Eviction(self._now_s, item, preemption.node_id, preemption.cards, items)
            self.record.evictions.append(made)
            self._made_room[item.id] = self._now
            waiting.view = replace(waiting.view, made_room_at=self._now)

    def _rest(self, item: Item) -> None:
        """For a while it is evicted no second time (SCHED-11)."""
        until = self._rests[item.id] = self._now_s + self._rules.pause_s
        self._at(until, Kind.REST, lambda: self._look_at_again(item))

    def _look_at_again(self, item: Item) -> None:
        stand = self._standing.get(item.id)
        if stand is not None:
            self.places.changed(stand.node, (), self._now_s)

    def _drop_kept(self, item_id: int) -> None:
        kept = self._kept.pop(item_id, None)
        if kept is not None:
            self.places.give_up(kept)

    def _refuse(self, waiting: Waiting, reasons: list[Reason]) -> None:
        if waiting.reasons is reasons:
            return
        waiting.reasons = reasons
        for why in reasons:
            known = self.record.refusals.get(why.code)
            if known is None:
                known = self.record.refusals[why.code] = Refusal(self._now_s, waiting.item, why)
            known.tasks.add(waiting.item.id)
