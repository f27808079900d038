"""The idle loop: puts services to sleep that nobody asks for, and ends drains that are over (SLEEP-06).

Owns the order of the steps and which rows are looked at. When a service is idle and what a leaving replica
does next is decided in `policy/`, on what the gateways say; each write is one transaction of workloads.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core.clock import listening_since
from apps.core.errors import Conflict
from apps.core.leases import Held
from apps.core.models import TickRun
from apps.core.ticks import tick
from apps.routing import gateways
from apps.routing.load import Source, last_used
from apps.scaling.policy.idle import (
    Leaving,
    Serving,
    Step,
    Terms,
    are_heard,
    busy_groups,
    gone,
    is_idle,
    next_step,
)
from apps.workloads import services as work
from apps.workloads.models import Task, TaskGroup

log = logging.getLogger("heteroflow.scaling")

NAME = gateways.WATCHER
ACTOR = "scaling"
# Stages that no gateway knows: they sleep and wake with the head of their pipeline.
FOLLOWS_HEAD = Q(group__parallelism=Parallelism.PIPELINE_PARALLEL, rank__gt=0)


@dataclass(frozen=True)
class _Picture:
    """What one run goes by. `asked`: when groups were last asked for; `busy`: those with a call in flight."""

    lease: Held
    now: datetime
    sources: list[Source]
    asked: dict[str, datetime]
    busy: frozenset[str]

    def asked_at(self, group: TaskGroup) -> datetime | None:
        told = self.asked.get(group.public_id)
        return max(filter(None, (told, group.asked_at)), default=None)


@tick(NAME, every="IDLE_PERIOD_S")
def idle(lease: Held, now: datetime) -> dict[str, Any]:
    """One look. The answer counts gateways, those that are silent, and what each step moved."""
    since, terms = _listening(now), Terms(settings.LOAD_FRESH_S, settings.LOAD_FORGET_S)
    sources = gateways.read()
    ended = gone(sources, now, since, terms)
    _keep_asked(lease, sources, ended)
    if ended:
        with lease.transaction():
            gateways.forget(ended)
    present = [source for source in sources if source not in ended]
    seen = _Picture(lease, now, present, _asked(present), _busy(present))
    done = {"listening_since": since.isoformat(), "gateways": len(present), "forgotten": len(ended)}
    lease.renew(settings.TICK_LEASE_TTL_S)
    done |= _go_on(seen)
    heard = are_heard(present, now, terms)
    lease.renew(settings.TICK_LEASE_TTL_S)
    return done | {"all_heard": heard, "left": _begin(seen) if heard else 0}


def _listening(now: datetime) -> datetime:
    """While this loop did not run, maybe for want of a database, nobody was silent."""
    past = TickRun.objects.filter(name=NAME).first()
    kept = past.detail.get("listening_since") if past is not None else None
    return listening_since(
        past.started_at if past is not None else None,
        datetime.fromisoformat(kept) if isinstance(kept, str) else None,
        now,
        gap_s=3 * settings.IDLE_PERIOD_S + settings.TICK_LEASE_TTL_S,
    )


def _asked(sources: list[Source]) -> dict[str, datetime]:
    return {group_id: datetime.fromtimestamp(at, UTC) for group_id, at in last_used(sources).items()}


def _busy(sources: list[Source]) -> frozenset[str]:
    tasks = {task_id for source in sources for task_id in source.load.in_flight}
    rows = Task.objects.filter(public_id__in=tasks) if tasks else Task.objects.none()
    return busy_groups(sources, dict(rows.values_list("public_id", "group__public_id")))


def _keep_asked(lease: Held, sources: list[Source], ended: list[Source]) -> None:
    """Write into the groups' rows when they were asked for: where the gateway's word of it goes, and before a
    gateway leaves it out as too old."""
    asked, going = _asked(sources), _asked(ended)
    if not asked:
        return
    step = timedelta(seconds=settings.LOAD_FORGET_S)
    groups = TaskGroup.objects.filter(idle_timeout_minutes__gt=0, deleted_at__isnull=True)
    behind = {
        pk: asked[public_id]
        for pk, public_id, kept in groups.values_list("pk", "public_id", "asked_at")
        if public_id in asked and (kept is None or asked[public_id] - kept > step or public_id in going)
    }
    if behind:
        with lease.transaction():
            for pk, at in sorted(behind.items()):
                TaskGroup.objects.filter(pk=pk).update(asked_at=at)


def _begin(seen: _Picture) -> int:
    """Let idle replicas leave the routes."""
    rows = Task.objects.filter(
        state=State.RUNNING,
        phase=Phase.READY,
        desired=Desired.RUN,
        group__task_type=TaskType.INFERENCE,
        group__idle_timeout_minutes__gt=0,
        group__deleted_at__isnull=True,
    ).exclude(FOLLOWS_HEAD)
    found = {
        task.pk: task.version
        for task in rows.select_related("group").order_by("pk")
        if is_idle(_serving(seen, task), seen.sources, seen.busy, seen.now)
    }

    def leave(task: Task) -> bool:
        try:
            work.ensure_may_sleep(task)
        except Conflict:  # being exchanged for another one: the next run looks again
            return False
        why = reason(Code.IDLE, idle_minutes=task.group.idle_timeout_minutes)
        return task.version == found[task.pk] and work.leave_routes(task, ACTOR, why, seen.now)

    return work.each_task(seen.lease, found, leave)


def _serving(seen: _Picture, task: Task) -> Serving:
    return Serving(
        task_id=task.public_id,
        group_id=task.group.public_id,
        since=task.state_since,
        asked_at=seen.asked_at(task.group),
        idle_s=_idle_s(task.group),
    )


def _idle_s(group: TaskGroup) -> float:
    return group.idle_timeout_minutes * settings.IDLE_MINUTE_S


def _go_on(seen: _Picture) -> dict[str, int]:
    """The next step of every replica that has left the routes and that a gateway may still use, or that
    falls asleep by itself."""
    idle = Q(reason_code=Code.IDLE, desired=Desired.SLEEP)
    rows = Task.objects.filter(Q(left_table__isnull=False) | idle, state=State.DRAINING)
    rows = rows.exclude(FOLLOWS_HEAD)
    found: dict[int, tuple[int, Step]] = {}
    for task in rows.select_related("group").order_by("pk"):
        step = next_step(_leaving(seen, task), seen.sources, seen.busy)
        if step is not Step.WAIT:
            found[task.pk] = (task.version, step)

    def act(task: Task) -> bool:
        version, step = found[task.pk]
        return task.version == version and _take(task, step, seen.now)

    moved = work.each_task(seen.lease, found, act)
    return {"steps": moved} | _counts(step for _, step in found.values())


def _leaving(seen: _Picture, task: Task) -> Leaving:
    return Leaving(
        task_id=task.public_id,
        group_id=task.group.public_id,
        left_table=task.left_table,
        since=task.state_since,
        asked_at=seen.asked_at(task.group),
        desired=Desired(task.desired),
        phase=Phase(task.phase),
        idle_s=_idle_s(task.group) if task.reason_code == Code.IDLE else None,
    )


def _take(task: Task, step: Step, now: datetime) -> bool:
    match step:
        case Step.CALL_BACK:
            return work.call_back(task, ACTOR, now)
        case Step.SLEEP:
            work.note_quiet(task)
            return work.order_sleep(task, now)
        case Step.WAKE:
            return work.request_wake(by=ACTOR, task=task, now=now).did is not work.Did.NOTHING
        case Step.STOP:
            return work.stop_one(task, ACTOR, Reason(Code(task.reason_code), task.reason_params), now)
    return work.note_quiet(task)


def _counts(steps: Iterable[Step]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for step in steps:
        counted[step.value] = counted.get(step.value, 0) + 1
    return counted
