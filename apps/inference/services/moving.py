"""Sleep, wake and scale of a service by a person (LIFE-04): the work's own services, noted in the trail.

Each may be repeated without harm and answers what it did and what comes next.
"""

from collections.abc import Callable
from datetime import datetime

from django.db import transaction

from apps.core import audit
from apps.core.errors import Conflict
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads import services as work
from apps.workloads.models import Task, TaskGroup
from apps.workloads.services import Act, Did


def sleep_task(*, actor: Viewer, task: Task, now: datetime) -> Act:
    """Put a task of a manageable group to sleep. Raises Conflict as `request_sleep`."""
    with transaction.atomic():
        act = work.request_sleep(by=actor.name, task=task, now=now)
        _note_task(actor, "sleep_task", task, act)
    return act


def wake_task(*, actor: Viewer, task: Task, now: datetime) -> Act:
    """Wake a task of a manageable group. Raises Conflict and Refusal as `request_wake`."""
    with transaction.atomic():
        act = work.request_wake(by=actor.name, task=task, now=now)
        _note_task(actor, "wake_task", task, act)
    return act


def sleep_service(*, actor: Viewer, group: TaskGroup, now: datetime) -> list[Act]:
    """Put every replica of a manageable group to sleep that can; those that can not are passed over."""
    return _each(group, lambda task: sleep_task(actor=actor, task=task, now=now))


def wake_service(*, actor: Viewer, group: TaskGroup, now: datetime) -> list[Act]:
    """Wake every replica of a manageable group that sleeps. Raises Refusal 403 `tenant_suspended`."""
    return _each(group, lambda task: wake_task(actor=actor, task=task, now=now))


def _each(group: TaskGroup, act: Callable[[Task], Act]) -> list[Act]:
    """What was done; without what was so already."""
    done = []
    with transaction.atomic():
        for task in group.tasks.select_related("group__tenant").order_by("rank"):
            try:
                done.append(act(task))
            except Conflict:
                continue
    return [one for one in done if one.did is not Did.NOTHING]


def _note_task(actor: Viewer, verb: str, task: Task, act: Act) -> None:
    if act.did is Did.NOTHING:
        return
    audit.note(
        actor,
        verb,
        kind="task",
        public_id=task.public_id,
        name=task.name,
        tenant=tenancy_of(task.group.tenant),
        before={"state": task.state},
        after={"did": act.did, "code": act.why.code},
    )


def scale_service(*, actor: Viewer, group: TaskGroup, replicas: int, now: datetime) -> Act:
    """Give a manageable group so many replicas. Raises as `set_replicas`."""
    with transaction.atomic():
        act = work.set_replicas(by=actor.name, group=group, replicas=replicas, now=now)
        if act.did is not Did.NOTHING:
            audit.note(
                actor,
                "scale_service",
                kind="group",
                public_id=group.public_id,
                name=group.name,
                tenant=tenancy_of(group.tenant),
                after={"replicas": replicas, **act.next.params},
            )
    return act
