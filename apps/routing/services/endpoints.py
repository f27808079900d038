"""Endpoints: the outward face of a group, with the key that is shown once (SVC-07, SVC-16)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.core import audit, versions
from apps.core.bodies import Fields
from apps.core.errors import Conflict, FieldError, Invalid
from apps.routing.models import InferenceEndpoint
from apps.routing.selectors import is_endpoint_name_taken, ports_of
from apps.tenants.models import ApiKey, User
from apps.tenants.scope import Viewer
from apps.tenants.services import issue_key, revoke_key, rotate_key
from apps.tenants.trail import tenancy_of
from apps.workloads.models import TaskGroup

NAME_LIMIT = 200


def create_endpoint(
    *, actor: Viewer, group: TaskGroup, name: str, port: int, now: datetime
) -> tuple[InferenceEndpoint, str]:
    """An endpoint and the plain value of its new key, which is kept nowhere (TEN-06).

    Raises Conflict `name_taken` (SVC-07).
    """
    try:
        with transaction.atomic():
            key, plain = _issue(actor, group, name, now)
            endpoint = InferenceEndpoint.objects.create(
                tenant_id=group.tenant_id,
                created_by_id=group.created_by_id,
                name=name,
                group=group,
                api_key=key,
                port=port,
            )
            _note(actor, "create_endpoint", endpoint, after={"port": port, "group": group.public_id})
    except IntegrityError:
        _refuse_taken(group.tenant_id, name, None)
        raise
    return endpoint, plain


def _issue(actor: Viewer, group: TaskGroup, name: str, now: datetime) -> tuple[ApiKey, str]:
    member = User.objects.get(pk=group.created_by_id)
    return issue_key(actor=actor, tenant=group.tenant, member=member, name=name, now=now)


def _refuse_taken(tenant_id: int, name: str, own: int | None) -> None:
    if is_endpoint_name_taken(tenant_id, name, but=own):
        raise Conflict("name_taken", errors=[FieldError("name", "name_taken", name)], value=name)


@dataclass(frozen=True)
class EndpointChanges:
    """What a PUT asks for; None = as it is."""

    name: str | None
    port: int | None
    external_port: int | None
    rotate_key: bool
    overlap_s: int = 0


def update_endpoint(
    *, actor: Viewer, endpoint: InferenceEndpoint, body: dict[str, Any], now: datetime
) -> tuple[InferenceEndpoint, str | None]:
    """Change name, port or external_port; the plain new key with `rotate_key: true`, and only then. The old
    one works on for `overlap_seconds`, or ends at once.

    Scope is the caller's: pass a manageable endpoint. Raises Invalid, Conflict `name_taken`.
    """
    changes = read_endpoint_changes(body, endpoint=endpoint, is_operator=actor.is_operator)
    fields = {
        name: value
        for name in ("name", "port", "external_port")
        if (value := getattr(changes, name)) is not None
    }
    if changes.name is not None:
        _refuse_taken(endpoint.tenant_id, changes.name, endpoint.pk)
    plain = None
    try:
        with transaction.atomic():
            present = InferenceEndpoint.objects.select_for_update(of=("self",)).get(pk=endpoint.pk)
            before, after = audit.changes(audit.picture(present, *fields), fields)
            if after:
                _note(actor, "change_endpoint", endpoint, before=before, after=after)
            if fields:
                InferenceEndpoint.objects.filter(pk=endpoint.pk).update(**fields)
                versions.bump()
            if changes.rotate_key:
                plain = _renew_key(actor, endpoint, changes.overlap_s, now)
    except IntegrityError:  # the name was taken since it was looked up
        _refuse_taken(endpoint.tenant_id, changes.name or "", endpoint.pk)
        raise
    endpoint.refresh_from_db()
    return endpoint, plain


def _renew_key(actor: Viewer, endpoint: InferenceEndpoint, overlap_s: int, now: datetime) -> str:
    """A new plain value: the old key row rotated, or a new row where it is gone or has ended."""
    key = endpoint.api_key
    ended = key is None or key.revoked_at is not None or (key.expires_at and key.expires_at <= now)
    if key is not None and not ended:
        return rotate_key(actor=actor, key=key, now=now, overlap_s=overlap_s)[1]
    key, plain = _issue(actor, endpoint.group, endpoint.name, now)
    InferenceEndpoint.objects.filter(pk=endpoint.pk).update(api_key=key)
    return plain


def read_endpoint_changes(
    body: dict[str, Any], *, endpoint: InferenceEndpoint, is_operator: bool
) -> EndpointChanges:
    """The changes that a body asks for. Raises Invalid with one error a broken rule."""
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    name = fields.text("name", limit=NAME_LIMIT, required=True) if fields.sent("name") else None
    port = fields.integer("port", 1, 65535)
    external_port = fields.integer("external_port", 0, 65535)
    rotate = fields.boolean("rotate_key")
    overlap_s = fields.integer("overlap_seconds", 0, settings.KEY_OVERLAP_MAX_S, default=0) or 0
    if overlap_s and not rotate:
        fields.refuse("overlap_seconds", "not_offered", overlap_s, why=_("it goes with rotate_key: true."))
    fields.close()
    if port is not None and not is_operator:
        declared = ports_of(endpoint.group)
        if port not in declared:
            names = ", ".join(map(str, declared)) or "-"
            fields.refuse("port", "port_not_declared", port, ports=names)
    if errors:
        raise Invalid(errors)
    return EndpointChanges(name, port, external_port, rotate, overlap_s)


def delete_endpoint(*, actor: Viewer, endpoint: InferenceEndpoint, now: datetime) -> None:
    """Remove an endpoint and end its key; the group stays, without an endpoint (SVC-16)."""
    with transaction.atomic():
        key = endpoint.api_key
        gone, _ = InferenceEndpoint.objects.filter(pk=endpoint.pk).delete()
        if gone:
            _note(actor, "delete_endpoint", endpoint, before={"port": endpoint.port})
        if key is not None:
            revoke_key(actor=actor, key=key, now=now)
        versions.bump()


def _note(actor: Viewer, verb: str, endpoint: InferenceEndpoint, **values: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="endpoint",
        public_id=endpoint.public_id,
        name=endpoint.name,
        tenant=tenancy_of(endpoint.tenant),
        **values,
    )
