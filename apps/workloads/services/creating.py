"""Making a group with its tasks (SVC-01). Validation and quotas are the caller's."""

from datetime import datetime
from typing import Any

from django.db.models import Max

from agent.contract.codes import Code, Reason
from agent.contract.states import State
from apps.core import hints
from apps.core.errors import Forbidden
from apps.tenants.models import Tenant
from apps.tenants.scope import Viewer
from apps.workloads.models import Event, Task, TaskGroup
from apps.workloads.state import derive_again

# What a task made like another one does not take over from it; everything else is intent.
OWN_FIELDS = frozenset(
    {"id", "public_id", "rank", "created_at", "replaces_id", "retired_at", "desired", "version", "attempt"}
    | {"state", "state_since", "deadline_at", "phase", "node_id", "running_since", "rebuilds", "not_before"}
    | {"reason_code", "reason_params", "refusals", "last_error", "left_table", "node_refusals"}
)


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
    group, tasks = rows_of_group(
        tenant=tenant, group_fields=group_fields, task_fields=task_fields, replicas=replicas, now=now
    )
    group.created_by_id = actor.user_id
    group.save(force_insert=True)
    Task.objects.bulk_create(tasks)
    Event.objects.bulk_create(
        Event(group=group, task=task, to_state=State.PENDING, code=Code.CREATED, actor=actor.name, at=now)
        for task in tasks
    )
    hints.kick("scheduling.place")
    return group


def rows_of_group(
    *,
    tenant: Tenant,
    group_fields: dict[str, Any],
    task_fields: dict[str, Any],
    replicas: int,
    now: datetime,
) -> tuple[TaskGroup, list[Task]]:
    """A group and its tasks, in the order of ranks, as they are before anything is written of them."""
    group = TaskGroup(tenant=tenant, state=State.PENDING, state_since=now, created_at=now, **group_fields)
    base = task_fields.get("name") or group.name
    tasks = [
        Task(
            **task_fields
            | {"group": group, "rank": rank, "name": base if replicas == 1 else f"{base}-{rank}"},
            state=State.PENDING,
            state_since=now,
            created_at=now,
            reason_code=Code.CREATED,
        )
        for rank in range(replicas)
    ]
    return group, tasks


def add_like(pattern: Task, *, by: str, why: Reason, now: datetime, replaces: Task | None = None) -> Task:
    """Write one more task of the same group and generation, of the same intent, under the next free rank.
    Call inside the transaction that holds the group's lock."""
    rank = free_rank(pattern)
    fields = {
        field.attname: getattr(pattern, field.attname)
        for field in Task._meta.concrete_fields
        if field.attname not in OWN_FIELDS
    }
    if replaces is None:
        fields["name"] = f"{pattern.name.removesuffix(f'-{pattern.rank}')}-{rank}"
    task = Task.objects.create(
        **fields,
        rank=rank,
        state_since=now,
        created_at=now,
        reason_code=why.code,
        reason_params=why.params,
        replaces=replaces,
    )
    Event.objects.create(
        group_id=pattern.group_id,
        task=task,
        to_state=State.PENDING,
        code=why.code,
        params=why.params,
        actor=by,
        at=now,
    )
    derive_again(pattern.group_id, now)
    return task


def free_rank(task: Task) -> int:
    """The rank after the last one of a task's group and generation."""
    same = Task.objects.filter(group=task.group_id, generation=task.generation)
    return int(same.aggregate(last=Max("rank"))["last"] or 0) + 1
