"""What operators change on a node: cordon, pool, labels, name, and who may use it (TEN-09)."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction

from apps.core import audit, hints
from apps.core.errors import FieldError, Forbidden, Invalid
from apps.fleet.models import Node
from apps.tenants.models import SharedGroup, Tenant
from apps.tenants.scope import Viewer

PLAIN_FIELDS = frozenset({"name", "cordoned", "pool", "labels", "open_to_all"})


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
    tenant or group that does not exist.
    """
    if not actor.is_operator:
        raise Forbidden
    unknown = set(changes) - PLAIN_FIELDS
    if unknown:
        raise ValueError(f"not a field that operators change: {sorted(unknown)}")
    with transaction.atomic():
        old = _present(node)
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
