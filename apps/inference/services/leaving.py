"""Stopping, starting again and deleting a service; each may be repeated without harm (SVC-12, LIFE-04)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from agent.contract.codes import Code, reason
from agent.contract.states import State
from apps.core import audit
from apps.routing import services as routing
from apps.routing.models import InferenceEndpoint
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads.models import Task, TaskGroup
from apps.workloads.selectors import stages_of
from apps.workloads.services import (
    Act,
    Did,
    StopOutcome,
    request_delete,
    request_stop,
    said,
    start_again,
)


@dataclass(frozen=True)
class Deleted:
    """What a deletion did now. `already` = it had been asked for before; `stopping` tasks still hold
    their cards and ports until their node confirms the end."""

    already: bool
    stopping: int
    routes_removed: int
    endpoint_removed: bool


def delete_service(*, actor: Viewer, group: TaskGroup, now: datetime) -> Deleted:
    """Hide a group, stop its tasks, remove its routes and endpoint, end the endpoint's key.

    Scope is the caller's: pass a manageable group. A repeat does nothing and says so.
    """
    with transaction.atomic():
        present = TaskGroup.objects.select_for_update().filter(pk=group.pk).values_list("deleted_at").first()
        already = present is None or present[0] is not None
        request_delete(actor=actor, group=group, now=now)
        routes = routing.remove_routes_of(group)
        endpoint = InferenceEndpoint.objects.select_related("api_key").filter(group=group).first()
        if endpoint is not None:
            routing.delete_endpoint(actor=actor, endpoint=endpoint, now=now)
        holding = Task.objects.filter(group=group, claims__released_at__isnull=True, claims__isnull=False)
        stopping = holding.distinct().count()
        if not already:
            _note(actor, "delete_service", group, before={"state": group.state})
    return Deleted(already, stopping, routes, endpoint is not None)


def stop_group(*, actor: Viewer, group: TaskGroup, now: datetime) -> StopOutcome:
    """Ask every task of a manageable group to stop; the group, its route and endpoint stay."""
    with transaction.atomic():
        outcome = request_stop(actor=actor, tasks=group.tasks.all(), why=reason(Code.STOP_REQUESTED), now=now)
        if outcome.moved:
            _note(actor, "stop_service", group, after={"tasks_stopping": outcome.moved})
    return outcome


def start_group(*, actor: Viewer, group: TaskGroup, now: datetime) -> int:
    """Let every stopped or failed task of a manageable group be placed anew; answers how many.

    Raises Refusal 403 `tenant_suspended` or `quota_exceeded`.
    """
    with transaction.atomic():
        started = start_again(actor=actor, tasks=group.tasks.all(), now=now)
        if started:
            _note(actor, "start_service", group, after={"tasks_starting": started})
    return started


def stop_task(*, actor: Viewer, task: Task, now: datetime) -> Act:
    """Ask one task of a manageable group to stop; of a pipeline all stages."""
    with transaction.atomic():
        outcome = request_stop(actor=actor, tasks=stages_of(task), why=reason(Code.STOP_REQUESTED), now=now)
        if outcome.moved:
            audit.note(
                actor,
                "stop_task",
                kind="task",
                public_id=task.public_id,
                name=task.name,
                tenant=tenancy_of(task.group.tenant),
                before={"state": task.state},
            )
        after = State(Task.objects.values_list("state", flat=True).get(pk=task.pk))
    if outcome.moved:
        if after == State.STOPPED:
            return Act(Did.STOPPED, said("stopped_at_once"), said("next_nothing"))
        return Act(Did.STOPPING, said(Code.STOP_REQUESTED), said("next_node_confirms"))
    if after in (State.STOPPED, State.COMPLETED):
        code = "already_stopped" if after == State.STOPPED else "already_ended"
        return Act(Did.NOTHING, said(code), said("next_nothing"))
    return Act(Did.NOTHING, said("already_stopping"), said("next_node_confirms"))


def _note(actor: Viewer, verb: str, group: TaskGroup, **values: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="group",
        public_id=group.public_id,
        name=group.name,
        tenant=tenancy_of(group.tenant),
        **values,
    )
