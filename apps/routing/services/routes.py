"""Model routes: made with a group or by POST, changed by PUT, removed with the group or by DELETE (GW-16,
SVC-12). Those that lead to an external engine are operators' alone (GW-19)."""

from typing import Any

from django.db import IntegrityError, transaction

from apps.core import audit, versions
from apps.core.bodies import Fields
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid, NotFound, named_by
from apps.routing.models import Balancing, ExternalEngine, ModelRoute, Sticky
from apps.tenants.scope import Viewer, pick_tenant
from apps.tenants.trail import tenancy_of
from apps.workloads import selectors as work
from apps.workloads.models import TaskGroup

PRIORITY_LIMIT = 1_000_000
MODEL_NAME_LIMIT = 200


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


def add_route(*, actor: Viewer, body: dict[str, Any]) -> ModelRoute:
    """One more route: a model name of `tenant` leads to `group_id` or to `external_id` (GW-16, GW-19).

    The group must be one that the caller manages; its tenant is the route's. Raises Invalid, NotFound,
    Forbidden, Conflict `route_exists`.
    """
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    group_id = fields.text("group_id", limit=40)
    external_id = fields.text("external_id", limit=40)
    slug = fields.text("tenant", limit=200)
    model_name = fields.text("model_name", limit=MODEL_NAME_LIMIT, required=not group_id)
    changes = _read_changes(fields, is_operator=actor.is_operator)
    if bool(group_id) == bool(external_id):
        fields.refuse("group_id", "one_target")
    if errors:
        raise Invalid(errors)
    with named_by("group_id", group_id):
        group = work.group_by_id(actor, group_id, manage=True) if group_id else None
    external = None if group is not None else _external(actor, external_id)
    tenant = group.tenant if group is not None else pick_tenant(actor, slug)
    if group is not None and slug and slug != tenant.slug:
        raise Invalid([FieldError("tenant", "of_another_tenant", slug)])
    name = model_name or (group.model_name if group is not None else "")
    with transaction.atomic():
        try:
            with transaction.atomic():
                route = ModelRoute.objects.create(
                    tenant=tenant, model_name=name, group=group, external=external, **changes
                )
        except IntegrityError:
            raise Conflict("route_exists", value=name) from None
        after = changes | {"model_name": name, "target": group_id or external_id}
        _note(actor, "create_route", route, after=after)
        versions.bump()
    return route


def update_route(*, actor: Viewer, route: ModelRoute, body: dict[str, Any]) -> ModelRoute:
    """Change weight, priority, balancing, version, sticky or active; what is not sent stays (GW-16).

    Scope is the caller's: pass a manageable route. Raises Invalid, Forbidden.
    """
    _require_own(actor, route)
    changes = read_route_changes(body, is_operator=actor.is_operator)
    if changes:
        with transaction.atomic():
            present = ModelRoute.objects.select_for_update(of=("self",)).get(pk=route.pk)
            before, after = audit.changes(audit.picture(present, *changes), changes)
            ModelRoute.objects.filter(pk=route.pk).update(**changes)
            if after:
                _note(actor, "change_route", route, before=before, after=after)
            versions.bump()
        route.refresh_from_db()
    return route


def delete_route(*, actor: Viewer, route: ModelRoute) -> None:
    """Remove one route; what it leads to goes on. Scope is the caller's. Raises Forbidden."""
    _require_own(actor, route)
    with transaction.atomic():
        gone, _ = ModelRoute.objects.filter(pk=route.pk).delete()
        if gone:
            _note(actor, "delete_route", route, before={"weight": route.weight, "version": route.version})
            versions.bump()


def _require_own(actor: Viewer, route: ModelRoute) -> None:
    """Raises Forbidden for a route to an external engine, unless an operator asks."""
    if route.external_id is not None and not actor.is_operator:
        raise Forbidden


def _external(actor: Viewer, public_id: str) -> ExternalEngine:
    """Raises NotFound: to anyone but an operator there are none."""
    found = ExternalEngine.objects.filter(public_id=public_id).first() if actor.is_operator else None
    if found is None:
        raise NotFound("external_id", public_id)
    return found


def _note(actor: Viewer, verb: str, route: ModelRoute, **values: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="route",
        public_id=route.public_id,
        name=route.model_name,
        tenant=tenancy_of(route.tenant),
        **values,
    )


def read_route_changes(body: dict[str, Any], *, is_operator: bool) -> dict[str, Any]:
    """The changes that a body asks for. Raises Invalid with one error a broken rule."""
    errors: list[FieldError] = []
    changes = _read_changes(Fields(body, errors), is_operator=is_operator)
    if errors:
        raise Invalid(errors)
    return changes


def _read_changes(fields: Fields, *, is_operator: bool) -> dict[str, Any]:
    """What may be set of a route, as far as it is sent; closes the fields."""
    low = -PRIORITY_LIMIT if is_operator else 0
    found = {
        "weight": fields.integer("weight", 0, 100),
        "priority": _read_priority(fields, low),
        "balancing": fields.choice("balancing", Balancing.values) or None,
        "version": _read_version(fields),
        "active": fields.boolean("active") if fields.sent("active") else None,
        # An empty text is a value here: calls need not stay together any more.
        "sticky": fields.choice("sticky", Sticky.values) if fields.sent("sticky") else None,
    }
    fields.close()
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
