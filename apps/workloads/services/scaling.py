"""Changing by hand how many replicas a service has (LIFE-04): counted against the quota in the transaction
that makes them (TEN-07). Replicas that are added belong to the service, so to its creator.
"""

from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core import hints
from apps.core.errors import Conflict, FieldError, Invalid, NotFound, Refusal
from apps.tenants import quotas
from apps.tenants.models import Quota, TenantStatus
from apps.workloads.models import Task, TaskGroup
from apps.workloads.policy.replicas import Replica, Scaling, decide_replicas
from apps.workloads.selectors import NOT_COUNTED, count_for_quota, is_pipeline
from apps.workloads.services.acts import Act, Did, Said, said
from apps.workloads.services.creating import add_like
from apps.workloads.services.leaving import stop_one
from apps.workloads.services.sleeping import request_sleep, request_wake
from apps.workloads.state import move_of, transition


def set_replicas(*, by: str, group: TaskGroup, replicas: int, now: datetime) -> Act:
    """Give a service so many replicas; safe to repeat. Scope is the caller's. What serves and has to go gets
    DRAIN_DEADLINE_S for its running calls.

    Raises Invalid (outside min_replicas..max_replicas), Conflict 409 `scales_not`, Refusal 403
    `tenant_suspended` (to add or wake) or `quota_exceeded`, NotFound where it was deleted meanwhile.
    """
    with transaction.atomic():
        quota = quotas.lock(group.tenant)
        rows = TaskGroup.objects.select_for_update(of=("self",)).select_related("tenant")
        fresh = rows.filter(pk=group.pk).first()
        if fresh is None or fresh.deleted_at is not None:
            raise NotFound
        _ensure_allowed(fresh, replicas)
        tasks = _replicas_of(fresh)
        plan = decide_replicas([_as_replica(task) for task in tasks.values()], replicas)
        if not plan.moves:
            return Act(Did.NOTHING, said("already_so", replicas=replicas), said("next_nothing"))
        grows = bool(plan.woken or plan.restarted or plan.made)
        if grows and fresh.tenant.status == TenantStatus.SUSPENDED:
            raise Refusal("tenant_suspended", 403, why=fresh.tenant.suspended_reason or "-")
        _ensure_room(quota, fresh, tasks, plan)
        _carry_out(by, fresh, tasks, plan, replicas, now)
    hints.kick("scheduling.place")
    return Act(Did.SCALED, *_told(plan, replicas))


def _ensure_allowed(group: TaskGroup, replicas: int) -> None:
    if is_pipeline(group):
        raise Conflict("pipeline_scales_not")
    if group.task_type != TaskType.INFERENCE:
        raise Conflict("scales_not", task_type=group.task_type)
    if replicas > group.max_replicas:
        raise Invalid([FieldError("replicas", "above_max_replicas", replicas, {"max": group.max_replicas})])
    if replicas < group.min_replicas:
        raise Invalid([FieldError("replicas", "below_min_replicas", replicas, {"min": group.min_replicas})])


def _replicas_of(group: TaskGroup) -> dict[int, Task]:
    """Without what a drain put beside one of them or took out already."""
    own = Task.objects.filter(group=group, generation=group.current_generation)
    rows = own.filter(replaces__isnull=True, retired_at__isnull=True)
    return {task.pk: task for task in rows.select_related("group__tenant", "node").order_by("rank")}


def _as_replica(task: Task) -> Replica:
    return Replica(task.pk, task.rank, State(task.state), Phase(task.phase), Desired(task.desired))


def _ensure_room(quota: Quota, group: TaskGroup, tasks: dict[int, Task], plan: Scaling) -> None:
    """A stopped replica counts no more, so to start it is to ask for it anew."""
    used = count_for_quota(group.tenant)
    counted = Task.objects.filter(pk__in=plan.restarted).filter(NOT_COUNTED)
    cards = counted.aggregate(cards=Sum("gpu_required"))["cards"] or 0
    cards += plan.made * _pattern(tasks).gpu_required if plan.made else 0
    quotas.ensure(quota, "replicas", used=used.replicas, asked=counted.count() + plan.made)
    quotas.ensure(quota, "gpus", used=used.gpus, asked=cards)


def _pattern(tasks: dict[int, Task]) -> Task:
    """The replica that new ones are made like: the one of lowest rank."""
    return min(tasks.values(), key=lambda task: task.rank)


def _carry_out(
    by: str, group: TaskGroup, tasks: dict[int, Task], plan: Scaling, replicas: int, now: datetime
) -> None:
    for pk in plan.leaving:
        _let_go(tasks[pk], by, reason(Code.SCALED_IN, replicas=replicas), now)
    for pk in plan.put_to_sleep:
        request_sleep(by=by, task=tasks[pk], now=now)
    for pk in plan.woken:
        request_wake(by=by, task=tasks[pk], now=now)
    why = reason(Code.SCALED_OUT, replicas=replicas)
    for pk in plan.restarted:
        again = move_of(
            tasks[pk],
            State.PENDING,
            why,
            desired=Desired.RUN,
            rebuilds=0,
            template_index=0,
            node_refusals={},
            not_before=None,
            node_id=None,
            running_since=None,
        )
        transition(again, actor=by, now=now)
    for _ in range(plan.made):
        add_like(_pattern(tasks), by=by, why=why, now=now)


def _let_go(task: Task, by: str, why: Reason, now: datetime) -> None:
    """What serves ends its running calls first; so does what was to sleep."""
    if task.state == State.RUNNING:
        leaving = move_of(
            task,
            State.DRAINING,
            why,
            desired=Desired.STOP,
            phase=Phase.LEAVING,
            deadline_s=settings.DRAIN_DEADLINE_S,
        )
        transition(leaving, actor=by, now=now)
    elif task.state == State.DRAINING:
        Task.objects.filter(pk=task.pk).update(
            desired=Desired.STOP,
            phase=Phase.LEAVING,
            reason_code=why.code,
            reason_params=why.params,
            version=F("version") + 1,
        )
        if task.node is not None:
            hints.look(task.node.public_id)
    else:
        stop_one(task, by, why, now)


def _told(plan: Scaling, replicas: int) -> tuple[Said, Said]:
    coming = len(plan.woken) + len(plan.restarted) + plan.made
    code = Code.SCALED_OUT if coming else Code.SCALED_IN
    leaving = len(plan.leaving) + len(plan.put_to_sleep)
    return said(code, replicas=replicas), said("next_scales", coming=coming, leaving=leaving)
