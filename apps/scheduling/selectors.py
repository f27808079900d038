"""Reads the scheduler's snapshot: some twenty statements whatever the size of the fleet, no model rows.

Owns what is read together. Waiting tasks come first: where there are none, nothing else is read.
"""

from collections.abc import Iterable
from datetime import datetime

from django.conf import settings

from apps.scheduling.policy.snapshot import Reserve, Snapshot, TaskView, Thresholds
from apps.scheduling.standing import load_nodes
from apps.scheduling.waiting import view_of as view_of
from apps.scheduling.waiting import views_of_rows
from apps.tenants import redline
from apps.tenants.models import Tenant, TenantStatus
from apps.workloads import selectors as work
from apps.workloads.models import Task


def load_snapshot(now: datetime) -> Snapshot | None:
    """All that a decision rests on; None where no task waits (one statement)."""
    tasks = views_of_rows(work.waiting())
    return _snapshot(tasks, now) if tasks else None


def load_snapshot_of(task_ids: list[int], now: datetime) -> Snapshot:
    """The same for tasks that run, as if they waited: where else could they go (LIFE-09)?"""
    return _snapshot(views_of_rows(Task.objects.filter(pk__in=task_ids)), now)


def load_snapshot_with(would_be: Iterable[Task], now: datetime) -> Snapshot:
    """The same for tasks that are not written, behind all that wait before them (SVC-15)."""
    views = tuple(view_of(task) for task in would_be)
    lowest = min((view.priority for view in views), default=0)
    before = work.waiting().filter(group__priority__gte=lowest)  # who comes later takes nothing from them
    return _snapshot(views_of_rows(before) + views, now)


def _snapshot(tasks: tuple[TaskView, ...], now: datetime) -> Snapshot:
    return Snapshot(
        tasks=tasks,
        nodes=load_nodes(now, {task.model_path for task in tasks if task.model_path}),
        shared=redline.sharing(),
        suspended=dict(
            Tenant.objects.filter(status=TenantStatus.SUSPENDED).values_list("pk", "suspended_reason")
        ),
        reserve=reserve(),
        weights=settings.SCHEDULING_WEIGHTS,
        thresholds=thresholds(),
        fair_weights=_fair_weights() if settings.FAIR_SHARE else None,
        preemption_pause_s=settings.PREEMPTION_PAUSE_S,
    )


def reserve() -> Reserve:
    """What this installation keeps free on each card."""
    return Reserve(settings.VRAM_RESERVE_MB, settings.VRAM_RESERVE_RATIO)


def thresholds() -> Thresholds:
    """How busy a node may be here and still take work."""
    return Thresholds(
        settings.LOAD_THRESHOLD_CPU, settings.LOAD_THRESHOLD_MEMORY, settings.LOAD_THRESHOLD_DISK
    )


def _fair_weights() -> dict[int, float]:
    return dict(Tenant.objects.exclude(weight=1.0).values_list("pk", "weight"))
