"""Making a group with its tasks (SVC-01). Validation and quotas are the caller's."""

from datetime import datetime
from typing import Any

from agent.contract.codes import Code
from agent.contract.states import State
from apps.core import hints
from apps.core.errors import Forbidden
from apps.tenants.models import Tenant
from apps.tenants.scope import Viewer
from apps.workloads.models import Event, Task, TaskGroup


def create_group(
    *,
    actor: Viewer,
    tenant: Tenant,
    group_fields: dict[str, Any],
    task_fields: dict[str, Any],
    replicas: int,
    now: datetime,
) -> TaskGroup:
    """Write a group and `replicas` tasks (ranks 0, 1, ...) inside the caller's transaction.

    Field names are those of the models. Raises IntegrityError when the group's name is taken,
    Forbidden for an actor who is no person (a group belongs to its creator).
    """
    if actor.user_id is None:
        raise Forbidden
    group = TaskGroup.objects.create(
        tenant=tenant,
        created_by_id=actor.user_id,
        state=State.PENDING,
        state_since=now,
        created_at=now,
        **group_fields,
    )
    base = task_fields.pop("name", "") or group.name
    tasks = Task.objects.bulk_create(
        Task(
            group=group,
            rank=rank,
            name=base if replicas == 1 else f"{base}-{rank}",
            state=State.PENDING,
            state_since=now,
            created_at=now,
            reason_code=Code.CREATED,
            **task_fields,
        )
        for rank in range(replicas)
    )
    Event.objects.bulk_create(
        Event(group=group, task=task, to_state=State.PENDING, code=Code.CREATED, actor=actor.name, at=now)
        for task in tasks
    )
    hints.kick("scheduling.place")
    return group
