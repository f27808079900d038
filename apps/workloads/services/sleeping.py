"""Putting tasks to sleep and waking them (SLEEP-01 to -06): wishes that agents carry out.

A sleeper keeps its claim, so its place, cards and ports. Decides what a wish does in each state; when a
service is idle is decided elsewhere. Each write is one transaction that holds the group's lock. Of a
pipeline the head is put to sleep and woken, and its other stages with it (`policy/pipelines.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core import hints, versions
from apps.core.errors import Conflict, NotFound, Refusal
from apps.fleet.models import Duty, Liveness
from apps.fleet.selectors import is_online
from apps.tenants.models import TenantStatus
from apps.workloads.models import Claim, Loan, Task
from apps.workloads.policy.pipelines import HEAD
from apps.workloads.policy.wake import Bed, Step, decide_wake
from apps.workloads.selectors import behind_head_s, is_pipeline, stages_of
from apps.workloads.services.acts import Act, Did, Said, said
from apps.workloads.services.claiming import patience_s
from apps.workloads.services.ending import ASLEEP_FIELDS, hand_on, live_claim, release_untaken
from apps.workloads.services.reporting import note_moments
from apps.workloads.state import Move, lock_groups, move_of, transition

AWAKE_SOON = frozenset({State.PENDING, State.SCHEDULING, State.WAKING})


def request_sleep(*, by: str, task: Task, now: datetime) -> Act:
    """Put one task to sleep because somebody asked; safe to repeat. Scope is the caller's.

    Raises Conflict 409 `cannot_sleep`, `sleeps_not` or `replica_in_exchange`.
    """
    with transaction.atomic():
        fresh, *others = stages_of(_locked(task))
        state, wish = State(fresh.state), Desired(fresh.desired)
        for stage in (fresh, *others):
            ensure_may_sleep(stage)
        _stay_asleep(others, by, now)
        if state == State.SLEEPING:
            if wish == Desired.SLEEP:
                return Act(Did.NOTHING, said("already_asleep"), said("next_stays_asleep"))
            _wish(fresh, Desired.SLEEP, reason(Code.ASLEEP), by, now)
            return Act(Did.NOTED, said("wake_withdrawn"), said("next_stays_asleep"))
        if state == State.WAKING:
            return _back_to_sleep(fresh, by, now)
        if state == State.DRAINING:
            return _on_with_sleep(fresh, by, now)
        leave_routes(fresh, by, reason(Code.SLEEP_REQUESTED), now)
        fresh.refresh_from_db()
        order_sleep(fresh, now)
        return Act(Did.DRAINING, said(Code.SLEEP_REQUESTED), _falls_asleep())


def ensure_may_sleep(task: Task) -> None:
    """Raises Conflict where a task can not be put to sleep: by its kind, its state, or because it is being
    exchanged for another one."""
    if task.group.task_type != TaskType.INFERENCE:
        raise Conflict("sleeps_not", task_type=task.group.task_type)
    if task.replaces_id is not None or Task.objects.filter(replaces=task).exists():
        raise Conflict("replica_in_exchange")
    leaving = task.desired == Desired.STOP or task.retired_at is not None
    if leaving or task.state not in (State.RUNNING, State.DRAINING, State.SLEEPING, State.WAKING):
        raise Conflict("cannot_sleep", state=task.state)


def leave_routes(task: Task, by: str, why: Reason, now: datetime) -> bool:
    """Take a running task out of the routes, to sleep: from the next table on no new call reaches it. Its
    node knows nothing of it yet: `order_sleep` goes on, `call_back` puts it back. Holds the group's lock."""
    left = transition(_leaving(task, why, settings.SLEEP_DRAIN_S), actor=by, now=now)
    for stage in _behind(task) if left else ():
        if stage.state == State.RUNNING:
            transition(_leaving(stage, why, behind_head_s()), actor=by, now=now)
    return left


def _leaving(task: Task, why: Reason, deadline_s: float) -> Move:
    fields = {"desired": Desired.SLEEP, "phase": Phase.READY}
    return move_of(task, State.DRAINING, why, deadline_s=deadline_s, **fields)


def _behind(task: Task) -> list[Task]:
    """The other stages of the pipeline whose head this is; none of any other task."""
    return stages_of(task)[1:] if task.rank == HEAD else []


def _stay_asleep(stages: Iterable[Task], by: str, now: datetime) -> None:
    """Stages that were to wake with their head do not."""
    for stage in stages:
        if stage.state == State.WAKING:
            _back_to_sleep(stage, by, now)
        elif stage.state == State.SLEEPING and stage.desired == Desired.RUN:
            _wish(stage, Desired.SLEEP, reason(Code.ASLEEP), by, now)


def order_sleep(task: Task, now: datetime) -> bool:
    """Let the node put a task to sleep that has left the routes; from here there is no way back but through
    sleep. Stages behind a pipeline's head are told at once too, for they end with it, and go on until it
    sleeps. Holds the group's lock. False where the task has gone on."""
    for stage in _behind(task):
        order_sleep(stage, now)
    drain_s = settings.SLEEP_DRAIN_S if task.rank == HEAD or not is_pipeline(task.group) else behind_head_s()
    seconds = drain_s + settings.STOP_DEADLINE_S
    ordered = Task.objects.filter(
        pk=task.pk, version=task.version, state=State.DRAINING, phase=Phase.READY
    ).exclude(desired=Desired.STOP)
    done = ordered.update(
        phase=Phase.LEAVING, version=F("version") + 1, deadline_at=now + timedelta(seconds=seconds)
    )
    versions.bump()  # nobody waits for it to be called back any more
    _look(task)
    return bool(done)


def note_quiet(task: Task) -> bool:
    """No gateway has, or can still get, a call of a task that has left the routes: its node need not wait for
    an engine that does not say what it has in work. False where that was known."""
    noted = Task.objects.filter(pk=task.pk, left_table__isnull=False).update(left_table=None)
    _look(task)
    return bool(noted)


def call_back(task: Task, by: str, now: datetime) -> bool:
    """Put a task back into the routes that left them to sleep, and that its node was not told of yet. Holds
    the group's lock. False where the task has gone on."""
    if not _may_come_back(task):
        return False
    fields = {"desired": Desired.RUN, "phase": Phase.READY}
    why = reason(Code.STILL_USED)
    back = transition(move_of(task, State.RUNNING, why, **fields), actor=by, now=now)
    for stage in _behind(task) if back else ():
        if _may_come_back(stage):
            transition(move_of(stage, State.RUNNING, why, **fields), actor=by, now=now)
    return back


def _may_come_back(task: Task) -> bool:
    return task.state == State.DRAINING and task.desired != Desired.STOP and task.phase == Phase.READY


def _on_with_sleep(task: Task, by: str, now: datetime) -> Act:
    """Asked again while it is on its way."""
    if task.phase == Phase.READY and order_sleep(task, now):
        _wish(task, Desired.SLEEP, reason(Code.SLEEP_REQUESTED), by, now)  # it was idle, or called back
        return Act(Did.DRAINING, said(Code.SLEEP_REQUESTED), _falls_asleep())
    if task.desired == Desired.RUN:
        _wish(task, Desired.SLEEP, reason(Code.SLEEP_REQUESTED), by, now)
        return Act(Did.NOTED, said("wake_withdrawn"), _falls_asleep())
    if task.reason_code == Code.IDLE:  # by itself: then a call that still comes would wake it
        _wish(task, Desired.SLEEP, reason(Code.SLEEP_REQUESTED), by, now)
        return Act(Did.NOTED, said(Code.SLEEP_REQUESTED), _falls_asleep())
    return Act(Did.NOTHING, said("already_falling_asleep"), _falls_asleep())


def _back_to_sleep(task: Task, by: str, now: datetime) -> Act:
    """It serves nobody yet, so there is nothing to wait for."""
    claim = live_claim(task)
    kept = claim is not None and claim.incarnation != ""
    why = reason(Code.SLEEP_REQUESTED) if kept else reason(Code.ASLEEP_NO_CONTAINER)
    asleep = move_of(task, State.SLEEPING, why, desired=Desired.SLEEP, phase=Phase.NONE, **ASLEEP_FIELDS)
    transition(asleep, actor=by, now=now)
    _look(task)
    return Act(Did.SLEEPING, said(why.code), said("next_stays_asleep"))


def _falls_asleep() -> Said:
    return said("next_falls_asleep", settle_s=settings.SLEEP_SETTLE_S, drain_s=settings.SLEEP_DRAIN_S)


def request_wake(*, by: str, task: Task, now: datetime) -> Act:
    """Wake one task because somebody asked; safe to repeat. Scope is the caller's.

    Raises Conflict 409 `cannot_wake`, Refusal 403 `tenant_suspended` (TEN-01).
    """
    with transaction.atomic():
        fresh = stages_of(_locked(task))[0]
        tenant = fresh.group.tenant
        state, leaving = State(fresh.state), fresh.desired == Desired.STOP
        if leaving or state not in (State.RUNNING, State.DRAINING, State.SLEEPING, *AWAKE_SOON):
            raise Conflict("cannot_wake", state=state)
        if state == State.RUNNING:
            ready = fresh.phase == Phase.READY
            return Act(Did.NOTHING, said("already_awake"), said("next_serves" if ready else "next_ready"))
        if state in AWAKE_SOON:
            return _awake_soon(fresh)
        if tenant.status == TenantStatus.SUSPENDED:
            raise Refusal("tenant_suspended", 403, why=tenant.suspended_reason or "-")
        if state == State.DRAINING:
            return _call_or_wait(fresh, by, now)
        return wake_sleeper(fresh, by, now)


def _awake_soon(task: Task) -> Act:
    if task.state == State.WAKING:
        return Act(Did.NOTHING, said("already_waking"), _wakes(task))
    placed = task.state == State.SCHEDULING
    return Act(Did.NOTHING, said("already_starting"), said("next_ready" if placed else "next_is_placed"))


def _call_or_wait(task: Task, by: str, now: datetime) -> Act:
    if call_back(task, by, now):
        return Act(Did.SERVING, said(Code.STILL_USED), said("next_serves"))
    new = task.desired == Desired.SLEEP
    if new:
        _wish(task, Desired.RUN, reason(Code.WAKE_REQUESTED), by, now)
    return Act(_noted(new), said("wake_after_sleep"), said("next_wakes_by_itself"))


@dataclass(frozen=True)
class _Sleeper:
    """A sleeping task, what it holds, what its wake does now, and why."""

    task: Task
    claim: Claim | None
    step: Step
    why: Reason


def wake_sleeper(task: Task, by: str, now: datetime) -> Act:
    """What a wake of a sleeping task does now (SLEEP-02 to -05): with all stages of its pipeline, or not at
    all. Holds the group's lock."""
    stages = stages_of(task)
    if any(stage.state != State.SLEEPING for stage in stages):  # they have yet to follow their head
        new = task.desired != Desired.RUN
        if new:
            _wish(task, Desired.RUN, reason(Code.WAKE_REQUESTED), by, now)
        return Act(_noted(new), said("wake_after_sleep"), said("next_wakes_by_itself"))
    sleepers = [_look_at(stage, now) for stage in stages]
    waits = next((one for one in sleepers if one.step is Step.WAIT), None)
    if waits is not None:
        acts = [_let_wait(stage, waits.why, by, now) for stage in stages]
    elif any(one.step is Step.REPLACE for one in sleepers):
        acts = [_place_anew(stage, by, now) for stage in stages]
    else:
        acts = [_begin_wake(one, by, now) for one in sleepers]
    return acts[0]


def _look_at(task: Task, now: datetime) -> _Sleeper:
    claim = live_claim(task)
    loan = _loan_of(claim)
    step, code = decide_wake(_bed(task, claim, loan, now))
    if code == Code.WAKE_NODE_OFFLINE:
        return _Sleeper(task, claim, step, reason(code, node=task.node.name if task.node else "-"))
    if step is Step.WAIT and loan is not None:
        return _Sleeper(task, claim, step, _lent(task, loan))
    return _Sleeper(task, claim, step, reason(code))


def _let_wait(task: Task, why: Reason, by: str, now: datetime) -> Act:
    new = task.desired != Desired.RUN or task.reason_code != why.code
    if new:
        _wish(task, Desired.RUN, why, by, now)
        hints.kick("recovery.sweep")
    return Act(_noted(new), Said(why.code, dict(why.params)), said("next_wakes_by_itself"))


def _begin_wake(sleeper: _Sleeper, by: str, now: datetime) -> Act:
    task, rebuilt = sleeper.task, sleeper.claim if sleeper.step is Step.REBUILD else None
    waking = move_of(
        task,
        State.WAKING,
        sleeper.why,
        desired=Desired.RUN,
        phase=Phase.PLACED if rebuilt else Phase.CLAIMED,
        attempt=task.attempt + (rebuilt is not None),
        deadline_s=settings.CLAIM_DEADLINE_S if rebuilt else patience_s(task),
    )
    if transition(waking, actor=by, now=now) and rebuilt is not None:
        hand_on(rebuilt, now=now)
    _look(task)
    return Act(Did.WAKING, said(sleeper.why.code), _wakes(task))


def _noted(new: bool) -> Did:
    return Did.NOTED if new else Did.NOTHING


def _bed(task: Task, claim: Claim | None, loan: Loan | None, now: datetime) -> Bed:
    seen = Liveness.objects.filter(node=task.node_id).values_list("last_seen_at", flat=True).first()
    return Bed(
        placed=claim is not None and task.node is not None,
        online=is_online(seen, now),
        leaving=task.node is not None and task.node.duty != Duty.SERVICE,
        lent=loan is not None,
        container=claim is not None and claim.incarnation != "",
    )


def _loan_of(claim: Claim | None) -> Loan | None:
    live = Loan.objects.select_related("borrower__task__group").filter(ended_at__isnull=True)
    return live.filter(card__claim=claim).order_by("-until").first() if claim is not None else None


def _lent(task: Task, loan: Loan) -> Reason:
    """Other tenants' work is not named."""
    borrower = loan.borrower.task
    own = borrower.group.tenant_id == task.group.tenant_id
    until = loan.until.isoformat(timespec="seconds")
    return reason(Code.WAKE_CARD_LENT, borrower=borrower.name if own else "-", until=until)


def _place_anew(task: Task, by: str, now: datetime) -> Act:
    """It has no place any more, or its node is to be emptied: what it still has there goes as a stop does."""
    waiting = move_of(
        task,
        State.PENDING,
        reason(Code.WAKE_NEW_PLACE),
        desired=Desired.RUN,
        phase=Phase.NONE,
        node_id=None,
        not_before=None,
    )
    transition(waiting, actor=by, now=now)
    release_untaken(task, now=now)
    _look(task)
    hints.kick("scheduling.place")
    return Act(Did.PLACING, said(Code.WAKE_NEW_PLACE), said("next_is_placed"))


def _wakes(task: Task) -> Said:
    return said("next_wakes", within_s=patience_s(task))


def _wish(task: Task, wish: Desired, why: Reason, by: str, now: datetime) -> None:
    """What is wanted of a task changes, and its state does not. Who asks again keeps its turn to wake."""
    asked_at = task.wake_asked_at if task.desired == wish else now
    Task.objects.filter(pk=task.pk).update(
        desired=wish,
        reason_code=why.code,
        reason_params=why.params,
        wake_asked_at=asked_at if wish == Desired.RUN else None,
        version=F("version") + 1,
    )
    note_moments(task, [why], by=by, now=now)
    if task.state == State.SLEEPING:
        versions.bump()  # callers are told whether it wakes


def _locked(task: Task) -> Task:
    lock_groups([task.pk])
    found = Task.objects.select_related("group__tenant", "node").filter(pk=task.pk).first()
    if found is None or found.group.deleted_at is not None:
        raise NotFound
    return found


def _look(task: Task) -> None:
    if task.node is not None:
        hints.look(task.node.public_id)
