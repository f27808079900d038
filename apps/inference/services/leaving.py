"""Stopping, starting again and deleting a service; each may be repeated without harm (SVC-12, LIFE-04)."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from agent.contract.codes import Code, reason
from apps.routing import services as routing
from apps.routing.models import InferenceEndpoint
from apps.tenants.scope import Viewer
from apps.workloads.models import Task, TaskGroup
from apps.workloads.services import StopOutcome, request_delete, request_stop, start_again


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
        already = TaskGroup.objects.filter(pk=group.pk, deleted_at__isnull=False).exists()
        request_delete(actor=actor, group=group, now=now)
        routes = routing.remove_routes_of(group)
        endpoint = InferenceEndpoint.objects.select_related("api_key").filter(group=group).first()
        if endpoint is not None:
            routing.delete_endpoint(actor=actor, endpoint=endpoint, now=now)
        holding = Task.objects.filter(group=group, claims__released_at__isnull=True, claims__isnull=False)
        stopping = holding.distinct().count()
    return Deleted(already, stopping, routes, endpoint is not None)


def stop_group(*, actor: Viewer, group: TaskGroup, now: datetime) -> StopOutcome:
    """Ask every task of a manageable group to stop; the group, its route and endpoint stay."""
    return request_stop(actor=actor, tasks=group.tasks.all(), why=reason(Code.STOP_REQUESTED), now=now)


def start_group(*, actor: Viewer, group: TaskGroup, now: datetime) -> int:
    """Let every stopped or failed task of a manageable group be placed anew; answers how many.

    Raises Refusal 403 `tenant_suspended` or `quota_exceeded`.
    """
    return start_again(actor=actor, tasks=group.tasks.all(), now=now)


def stop_task(*, actor: Viewer, task: Task, now: datetime) -> StopOutcome:
    """Ask one task of a manageable group to stop."""
    return request_stop(actor=actor, tasks=[task], why=reason(Code.STOP_REQUESTED), now=now)
