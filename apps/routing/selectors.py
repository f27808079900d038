"""Reads of routes and endpoints, scope first: they are seen by whoever sees their group (TEN-04).

A route to an external engine has no group, so it is seen by those who see all of its tenant; the engines
themselves are operators' alone.
"""

from django.db.models import QuerySet

from apps.core.errors import NotFound
from apps.fleet.models import Port
from apps.routing.models import ExternalEngine, InferenceEndpoint, ModelRoute
from apps.tenants import scope
from apps.tenants.scope import Viewer
from apps.workloads.models import TaskGroup

_BY_GROUP = {"tenant": "tenant", "creator": "group__created_by"}


def _routes() -> QuerySet[ModelRoute]:
    rows = ModelRoute.objects.select_related("group", "tenant", "external")
    return rows.defer("external__api_key").filter(group__deleted_at__isnull=True)


def _endpoints() -> QuerySet[InferenceEndpoint]:
    rows = InferenceEndpoint.objects.select_related("group__tenant", "tenant", "api_key")
    return rows.filter(group__deleted_at__isnull=True)


def routes(viewer: Viewer) -> QuerySet[ModelRoute]:
    return scope.visible(viewer, _routes(), **_BY_GROUP)


def route_by_id(viewer: Viewer, public_id: str, *, manage: bool = False) -> ModelRoute:
    """Raises NotFound, or Forbidden where it is readable but `manage` is asked for."""
    get = scope.get_manageable if manage else scope.get_visible
    return get(viewer, _routes(), public_id, **_BY_GROUP)


def external_engines(viewer: Viewer) -> QuerySet[ExternalEngine]:
    """Without their keys, which only the published table reads."""
    rows = ExternalEngine.objects.defer("api_key")
    return rows if viewer.is_operator else rows.none()


def external_engine_by_id(viewer: Viewer, public_id: str) -> ExternalEngine:
    """Raises NotFound."""
    found = external_engines(viewer).filter(public_id=public_id).first()
    if found is None:
        raise NotFound
    return found


def endpoints(viewer: Viewer) -> QuerySet[InferenceEndpoint]:
    return scope.visible(viewer, _endpoints(), **_BY_GROUP)


def endpoint_by_id(viewer: Viewer, public_id: str, *, manage: bool = False) -> InferenceEndpoint:
    """Raises NotFound, or Forbidden where it is readable but `manage` is asked for."""
    get = scope.get_manageable if manage else scope.get_visible
    return get(viewer, _endpoints(), public_id, **_BY_GROUP)


def is_endpoint_name_taken(tenant_id: int, name: str, *, but: int | None = None) -> bool:
    """Whether another endpoint (row id `but` apart) of a tenant has the name (SVC-07)."""
    rows = InferenceEndpoint.objects.filter(tenant_id=tenant_id, name=name)
    return (rows if but is None else rows.exclude(pk=but)).exists()


def count_endpoints(tenant_id: int) -> int:
    """Count inside the transaction that holds the tenant's quota row (TEN-07)."""
    return InferenceEndpoint.objects.filter(tenant_id=tenant_id).count()


def ports_of(group: TaskGroup) -> list[int]:
    """Every port that the group's tasks declare, and every one that is mapped for them now."""
    numbers: set[int] = set()
    owners = []
    for public_id, ports in group.tasks.values_list("public_id", "ports"):
        owners.append(public_id)
        for mapping in ports:
            numbers.update(number for number in mapping.values() if number)
    numbers.update(Port.objects.filter(owner__in=owners).values_list("number", flat=True))
    return sorted(numbers)
