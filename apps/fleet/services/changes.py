"""What operators change on a node: cordon, pool, labels, name, its inference cap (SCHED-06), and who may use
it (TEN-09)."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.core import audit, hints
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.core.leases import Held
from apps.fleet.models import Duty, Node
from apps.tenants.models import SharedGroup, Tenant
from apps.tenants.scope import Viewer

PLAIN_FIELDS = frozenset({"name", "cordoned", "pool", "labels", "open_to_all", "inference_cap"})


def change_node(
    *,
    actor: Viewer,
    node: Node,
    changes: dict[str, Any],
    allowed_tenants: Iterable[str] | None = None,
    allowed_groups: Iterable[str] | None = None,
) -> Node:
    """Change PLAIN_FIELDS; set the allow list by tenants' slugs and shared groups' names (None = keep).

    Work that already runs there stays. Raises Forbidden for anyone but an operator, Invalid for a
    tenant or group that does not exist, Conflict `node_leaving` for uncordoning a node that is being emptied.
    """
    if not actor.is_operator:
        raise Forbidden
    unknown = set(changes) - PLAIN_FIELDS
    if unknown:
        raise ValueError(f"not a field that operators change: {sorted(unknown)}")
    with transaction.atomic():
        old = _present(node)
        if changes.get("cordoned") is False:
            duty = Node.objects.values_list("duty", flat=True).get(pk=node.pk)
            if duty != Duty.SERVICE:
                raise Conflict("node_leaving", node=node.name)
        if changes:
            Node.objects.filter(pk=node.pk).update(**changes)
        if allowed_tenants is not None:
            node.allowed_tenants.set(_found(Tenant, "slug", "allowed_tenants", allowed_tenants))
        if allowed_groups is not None:
            node.allowed_groups.set(_found(SharedGroup, "name", "allowed_groups", allowed_groups))
        before, after = audit.changes(old, _present(node))
        if after:
            note_node(actor, "change_node", node, before=before, after=after)
        hints.kick("scheduling.place")
    node.refresh_from_db()
    return node


def cordon(*, actor: Viewer, node: Node) -> Node:
    """Close a node for new work. Raises Forbidden."""
    return change_node(actor=actor, node=node, changes={"cordoned": True})


def uncordon(*, actor: Viewer, node: Node) -> Node:
    """Open a node for new work again. Raises Forbidden."""
    return change_node(actor=actor, node=node, changes={"cordoned": False})


def set_duty(*, actor: Viewer, node: Node, duty: Duty, verb: str, now: datetime) -> bool:
    """Turn a node to another duty (LIFE-09): closed for new work but in service; False where it is in
    that already. What follows is upkeep's. Raises Forbidden for anyone but an operator."""
    if not actor.is_operator:
        raise Forbidden
    closed = duty is not Duty.SERVICE
    with transaction.atomic():
        present = Node.objects.select_for_update().get(pk=node.pk)
        changed = (present.duty, present.cordoned) != (duty.value, closed)
        if changed:
            since = now if closed else None
            force_at = present.duty_force_at if closed else None
            Node.objects.filter(pk=node.pk).update(
                duty=duty, duty_since=since, duty_notes={}, duty_force_at=force_at, cordoned=closed
            )
            note_node(actor, verb, present, before={"duty": present.duty}, after={"duty": duty.value})
            hints.kick("scheduling.place")
    node.refresh_from_db()
    return changed


def set_force(*, actor: Viewer, node: Node, force_at: datetime | None, now: datetime) -> bool:
    """From when on what can not be moved off a node that is being emptied is stopped first; None = never.
    False where that stood already. Raises Forbidden, Conflict `node_in_service`."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        present = Node.objects.select_for_update().get(pk=node.pk)
        if present.duty == Duty.SERVICE:
            raise Conflict("node_in_service", node=present.name)
        before = present.duty_force_at
        # What is forced already is not forced anew.
        changed = before != force_at and not (before and force_at and before <= now and force_at <= now)
        if changed:
            Node.objects.filter(pk=node.pk).update(duty_force_at=force_at)
            said = {"force_at": force_at and force_at.isoformat()}
            note_node(
                actor, "force_node", present, before={"force_at": before and before.isoformat()}, after=said
            )
    node.refresh_from_db()
    return changed


def note_duty(*, lease: Held, node_id: int, notes: dict[str, Any]) -> None:
    """Keep why tasks are still on a node that is being emptied. Raises LeaseLost."""
    with lease.transaction():
        Node.objects.filter(pk=node_id).exclude(duty=Duty.SERVICE).update(duty_notes=notes)


def note_node(actor: audit.Actor, verb: str, node: Node, **values: Any) -> None:
    """Note what was done with a node, which belongs to no tenant."""
    audit.note(actor, verb, kind="node", public_id=node.public_id, name=node.name, **values)


def _present(node: Node) -> dict[str, Any]:
    """What operators may change, as it is now, read under lock."""
    row = Node.objects.select_for_update().get(pk=node.pk)
    return {
        **audit.picture(row, *sorted(PLAIN_FIELDS)),
        "allowed_tenants": sorted(row.allowed_tenants.values_list("slug", flat=True)),
        "allowed_groups": sorted(row.allowed_groups.values_list("name", flat=True)),
    }


def _found(kind: Any, by: str, field: str, wanted: Iterable[str]) -> list[Any]:
    names = list(dict.fromkeys(wanted))
    rows = list(kind.objects.filter(**{f"{by}__in": names}))
    missing = set(names) - {getattr(row, by) for row in rows}
    if missing:
        raise Invalid([FieldError(field, "no_such_name", name) for name in sorted(missing)])
    return rows
