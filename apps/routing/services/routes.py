"""Model routes: made with a group, changed by PUT, removed with the group (GW-16, SVC-12)."""

from typing import Any

from django.db import transaction

from apps.core import audit, versions
from apps.core.bodies import Fields
from apps.core.errors import FieldError, Invalid
from apps.routing.models import Balancing, ModelRoute
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads.models import TaskGroup

PRIORITY_LIMIT = 1_000_000


def create_route(
    *,
    group: TaskGroup,
    model_name: str,
    priority: int = 0,
    weight: int = 100,
    version: str = "v1",
    active: bool = True,
) -> ModelRoute:
    """A route to a group, with the values of SVC-01 where nothing else is said."""
    with transaction.atomic():
        route = ModelRoute.objects.create(
            tenant_id=group.tenant_id,
            group=group,
            model_name=model_name,
            priority=priority,
            weight=weight,
            version=version,
            active=active,
        )
        versions.bump()
    return route


def update_route(*, actor: Viewer, route: ModelRoute, body: dict[str, Any]) -> ModelRoute:
    """Change weight, priority, balancing, version or active; what is not sent stays (GW-16).

    Scope is the caller's: pass a manageable route. Raises Invalid.
    """
    changes = read_route_changes(body, is_operator=actor.is_operator)
    if changes:
        with transaction.atomic():
            present = ModelRoute.objects.select_for_update(of=("self",)).get(pk=route.pk)
            before, after = audit.changes(audit.picture(present, *changes), changes)
            ModelRoute.objects.filter(pk=route.pk).update(**changes)
            if after:
                audit.note(
                    actor,
                    "change_route",
                    kind="route",
                    public_id=route.public_id,
                    name=route.model_name,
                    tenant=tenancy_of(route.tenant),
                    before=before,
                    after=after,
                )
            versions.bump()
        route.refresh_from_db()
    return route


def read_route_changes(body: dict[str, Any], *, is_operator: bool) -> dict[str, Any]:
    """The changes that a body asks for. Raises Invalid with one error a broken rule."""
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    low = -PRIORITY_LIMIT if is_operator else 0
    found = {
        "weight": fields.integer("weight", 0, 100),
        "priority": _read_priority(fields, low),
        "balancing": fields.choice("balancing", [kind.value for kind in Balancing]) or None,
        "version": _read_version(fields),
        "active": fields.boolean("active") if fields.sent("active") else None,
    }
    fields.close()
    if errors:
        raise Invalid(errors)
    return {name: value for name, value in found.items() if value is not None}


def _read_priority(fields: Fields, low: int) -> int | None:
    """Negative numbers, which come before every other route, are for operators (SVC-08)."""
    value = fields.body.get("priority")
    if isinstance(value, int) and -PRIORITY_LIMIT <= value < low:
        fields.known.add("priority")
        fields.refuse("priority", "operators_only", value)
        return None
    return fields.integer("priority", low, PRIORITY_LIMIT)


def _read_version(fields: Fields) -> str | None:
    if not fields.sent("version"):
        return None
    return fields.text("version", limit=50, required=True)


def remove_routes_of(group: TaskGroup) -> int:
    """Remove every route to a group; answers how many. A repeat removes none (SVC-12)."""
    with transaction.atomic():
        removed, _ = ModelRoute.objects.filter(group=group).delete()
        if removed:
            versions.bump()
    return removed
