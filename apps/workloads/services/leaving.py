"""Stopping, starting again, deleting: intents that the loops and agents carry out (SVC-12)."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Count, QuerySet, Sum

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State
from apps.core import hints
from apps.core.errors import Refusal
from apps.core.leases import Held, LeaseLost
from apps.tenants import quotas
from apps.tenants.models import Tenant, TenantStatus
from apps.tenants.scope import Viewer
from apps.workloads.models import Claim, Task, TaskGroup
from apps.workloads.policy.moves import ENDED
from apps.workloads.selectors import NOT_COUNTED, count_for_quota
from apps.workloads.services.ending import live_claim, release
from apps.workloads.state import lock_groups, move_of, transition

log = logging.getLogger("heteroflow.workloads")

# States of a task in which to ask for it does something.
STARTABLE = frozenset({State.STOPPED, State.FAILED})
STOPPABLE = frozenset(State) - {State.STOPPING, State.STOPPED, State.COMPLETED}


@dataclass(frozen=True)
class StopOutcome:
    """How many tasks were told to stop, and how many were stopped or on their way already."""

    moved: int
    already: int


def request_stop(*, actor: Viewer, tasks: Iterable[Task], why: Reason, now: datetime) -> StopOutcome:
    """Ask tasks to stop; safe to repeat. Scope is the caller's: pass manageable tasks only.

    What runs goes to `stopping` and keeps its card and ports until its node confirms the end; what
    nobody took on yet is stopped at once.
    """
    moved = already = 0
    with transaction.atomic():
        ids = [task.pk for task in tasks]
        lock_groups(ids)
        if isinstance(tasks, QuerySet):  # asked again: a drain may have added or exchanged one meanwhile
            ids = list(tasks.order_by("pk").values_list("pk", flat=True))
        for task in Task.objects.select_related("group", "node").filter(pk__in=ids).order_by("pk"):
            if stop_one(task, actor.name, why, now):
                moved += 1
            else:
                already += 1
    return StopOutcome(moved, already)


def stop_one(task: Task, actor: str, why: Reason, now: datetime) -> bool:
    """Ask one task to stop, in the transaction that holds its group's lock; False where it has stopped
    or is on its way already."""
    state = State(task.state)
    if state not in STOPPABLE:
        return False
    claim = live_claim(task)
    if state == State.FAILED and claim is not None:
        # Its container may still exist: it stays failed until the node confirms, then it is stopped.
        wanted = Task.objects.filter(pk=task.pk).exclude(desired=Desired.STOP)
        return bool(wanted.update(desired=Desired.STOP))
    if state in (State.PENDING, State.FAILED):
        return transition(
            move_of(task, State.STOPPED, why, desired=Desired.STOP, refusals=[], phase=Phase.NONE),
            actor=actor,
            now=now,
        )
    leaving = move_of(
        task,
        State.STOPPING,
        why,
        desired=Desired.STOP,
        phase=Phase.LEAVING,
        deadline_s=settings.STOP_DEADLINE_S,
    )
    if not transition(leaving, actor=actor, now=now):
        return False
    unclaimed = claim is None or Claim.objects.filter(
        pk=claim.pk, incarnation="", released_at__isnull=True
    ).update(released_at=now)
    if unclaimed:
        # No run of an agent took it on, so nothing exists and nobody will confirm.
        if claim is not None:
            release(claim, now=now)
        task.refresh_from_db()
        transition(
            move_of(task, State.STOPPED, reason(Code.STOP_CONFIRMED), phase=Phase.NONE), actor=actor, now=now
        )
    elif task.node is not None:
        hints.look(task.node.public_id)
    return True


def start_again(*, actor: Viewer, tasks: Iterable[Task], now: datetime) -> int:
    """Let stopped or failed tasks be placed anew, with a fresh count of rebuilds; answers how many.

    Scope is the caller's: pass manageable tasks only. What is being deleted stays as it is. Raises
    Refusal 403 `tenant_suspended` or `quota_exceeded`: what was stopped is not counted any more, so
    that to start it again is to ask for it anew (TEN-01, TEN-07).
    """
    started = 0
    with transaction.atomic():
        ids = [task.pk for task in tasks]
        ended = Task.objects.filter(pk__in=ids, state__in=STARTABLE, group__deleted_at__isnull=True)
        # Of a drain's pair its people have one: the other one goes.
        ended = ended.filter(replaces__isnull=True, retired_at__isnull=True)
        _ensure_room(ended)
        lock_groups(ids)
        for task in ended.order_by("pk"):
            move = move_of(
                task,
                State.PENDING,
                reason(Code.START_REQUESTED),
                desired=Desired.RUN,
                rebuilds=0,
                template_index=0,
                node_refusals={},
                not_before=None,
                node_id=None,
                running_since=None,
            )
            started += transition(move, actor=actor.name, now=now)
    hints.kick("scheduling.place")
    return started


def _ensure_room(ended: QuerySet[Task]) -> None:
    """Lock each tenant's quota, in the order of creation (quota before groups), and count."""
    for tenant in Tenant.objects.filter(task_groups__tasks__in=ended).distinct().order_by("pk"):
        if tenant.status == TenantStatus.SUSPENDED:
            raise Refusal("tenant_suspended", 403, why=tenant.suspended_reason or "-")
        quota = quotas.lock(tenant)
        used = count_for_quota(tenant)
        asked = ended.filter(group__tenant=tenant).filter(NOT_COUNTED)
        sums = asked.aggregate(replicas=Count("pk"), gpus=Sum("gpu_required"))
        quotas.ensure(quota, "replicas", used=used.replicas, asked=sums["replicas"])
        quotas.ensure(quota, "gpus", used=used.gpus, asked=sums["gpus"] or 0)


def request_delete(*, actor: Viewer, group: TaskGroup, now: datetime) -> StopOutcome:
    """Hide a group from its people at once and stop its tasks; rows go when every node confirmed."""
    with transaction.atomic():
        outcome = request_stop(
            actor=actor, tasks=group.tasks.all(), why=reason(Code.DELETE_REQUESTED), now=now
        )
        TaskGroup.objects.filter(pk=group.pk, deleted_at__isnull=True).update(deleted_at=now)
    hints.kick("recovery.sweep")
    return outcome


def finish_deleted(
    *, lease: Held, now: datetime, before: Callable[[QuerySet[Claim]], object] = list
) -> list[str]:
    """Remove the rows of deleted groups that hold nothing on any node any more; answers the public
    ids of their tasks, whose logs may go too. `before` gets the claims that go along, in the same
    transaction."""
    gone: list[str] = []
    for group in TaskGroup.objects.filter(deleted_at__isnull=False):
        try:
            with lease.transaction():
                busy = group.tasks.exclude(state__in=ENDED).exists()
                held = Claim.objects.filter(task__group=group, released_at__isnull=True).exists()
                if busy or held:
                    continue
                tasks = list(group.tasks.values_list("public_id", flat=True))
                before(Claim.objects.filter(task__group=group))
                group.delete()
            gone += tasks
        except LeaseLost:
            raise
        except Exception:
            log.exception("group %s could not be removed; the others go on", group.public_id)
    return gone
