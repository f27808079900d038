"""Gateway keys (TEN-06): issued, changed, rotated, revoked. A value is returned once and kept nowhere.

Every change raises the gateway's version in the same transaction, so that a revoked key ends within
two seconds.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q

from apps.core import audit, secrets, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.tenants.models import ApiKey, Membership, Role, Tenant, User, usual_scopes
from apps.tenants.scope import MANAGES_ALL, Viewer, get_manageable
from apps.tenants.services.key_rules import LIMITS, bounds_of, check_changes, check_overlap, check_within
from apps.tenants.trail import tenancy_of


def issue_key(
    *,
    actor: Viewer,
    tenant: Tenant,
    member: User,
    name: str,
    scopes: Sequence[str] | None = None,
    allowed_models: Sequence[str] | None = None,
    allowed_addresses: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    now: datetime,
) -> tuple[ApiKey, str]:
    """A key and its plain value. `allowed_models` None = every model of the tenant, empty = none;
    `allowed_addresses` (CIDR) None or empty = from anywhere; `scopes` None = the usual ones.

    Members issue for themselves, owners and admins for members of their tenant, operators for
    anybody there and for themselves. Raises Forbidden; Invalid for a member who is not in the
    tenant or only a viewer, and for limits that break a rule.
    """
    _may_issue(actor, tenant, member)
    limits = {
        "scopes": usual_scopes() if scopes is None else scopes,
        "allowed_models": allowed_models,
        "allowed_addresses": allowed_addresses,
        "expires_at": expires_at,
    }
    columns = check_changes(limits, now=now)
    chosen = columns if scopes is not None else columns | {"scopes": None}  # the usual ones bind nobody
    bounds = bounds_of(chosen) if _sets_bounds(actor, tenant.pk) else {}
    plain = secrets.new_api_key()
    with transaction.atomic():
        key = ApiKey.objects.create(
            tenant=tenant,
            member=member,
            name=name,
            sha256=secrets.sha256_hex(plain),
            prefix=secrets.display_prefix(plain),
            bounds=bounds,
            **columns,
        )
        after = {"member": member.get_username(), "prefix": key.prefix}
        note_key(actor, "issue_key", key, after=after | audit.picture(key, *LIMITS))
        versions.bump()
    return key, plain


def change_key(*, actor: Viewer, key: ApiKey, changes: Mapping[str, Any], now: datetime) -> ApiKey:
    """Change a key's name or limits: what stands in `changes` (as `check_changes` takes it), no more. An
    expired key works again where its expiry is moved or taken away. Of the limits that an owner, admin or
    operator set, members may narrow each and widen none.

    Raises Invalid; Conflict for a revoked key; NotFound or Forbidden as get_manageable.
    """
    _may_change(actor, key)
    columns = check_changes(changes, now=now)
    with transaction.atomic():
        present = ApiKey.objects.select_for_update().get(pk=key.pk)
        if present.revoked_at is not None:
            raise Conflict("already_revoked")
        bounds = present.bounds
        if _sets_bounds(actor, present.tenant_id):
            bounds = {name: at for name, at in bounds.items() if name not in columns} | bounds_of(columns)
        else:
            check_within(bounds, columns)
        before, after = audit.changes(audit.picture(present, *columns), columns)
        if after or bounds != present.bounds:
            ApiKey.objects.filter(pk=key.pk).update(**after, bounds=bounds)
        if after:
            note_key(actor, "change_key", key, before=before, after=after)
            versions.bump()
    key.refresh_from_db()
    return key


def rotate_key(*, actor: Viewer, key: ApiKey, now: datetime, overlap_s: int = 0) -> tuple[ApiKey, str]:
    """A new plain value for the same key row. The one before works on for `overlap_s` seconds, until the key
    is rotated again, revoked or expires; without an overlap it ends at once.

    Raises Invalid for an overlap out of range; Conflict for a revoked or expired key; NotFound or Forbidden
    as get_manageable.
    """
    _may_change(actor, key)
    check_overlap(overlap_s)
    plain = secrets.new_api_key()
    with transaction.atomic():
        present = ApiKey.objects.select_for_update().get(pk=key.pk)
        if present.revoked_at is not None:
            raise Conflict("already_revoked")
        if present.expires_at is not None and present.expires_at <= now:
            raise Conflict("key_expired", expired_at=present.expires_at.isoformat())
        before = {"prefix": present.prefix}
        until = now + timedelta(seconds=overlap_s) if overlap_s else None
        present.former_sha256 = present.sha256 if until else None
        present.former_prefix = present.prefix if until else ""
        present.former_until = until
        present.sha256 = secrets.sha256_hex(plain)
        present.prefix = secrets.display_prefix(plain)
        present.last_used_at = None
        present.save()
        after = {"prefix": present.prefix} | ({"old_one_until": until} if until else {})
        note_key(actor, "rotate_key", present, before=before, after=after)
        versions.bump()
    return present, plain


def revoke_key(*, actor: Viewer, key: ApiKey, now: datetime) -> ApiKey:
    """End a key for good; revoking a revoked one changes nothing. Raises as get_manageable."""
    _may_change(actor, key)
    with transaction.atomic():
        if ApiKey.objects.filter(pk=key.pk, revoked_at__isnull=True).update(revoked_at=now):
            note_key(actor, "revoke_key", key, after={"revoked_at": now})
            versions.bump()
    key.refresh_from_db()
    return key


def note_key(actor: Viewer, verb: str, key: ApiKey, **values: Any) -> None:
    """Note what was done with a key; never its value or hash."""
    audit.note(
        actor,
        verb,
        kind="key",
        public_id=key.public_id,
        name=key.name,
        tenant=tenancy_of(key.tenant),
        **values,
    )


def touch_keys(used: Mapping[str, datetime]) -> None:
    """Write when keys (public ids) were last used; an older time than the written one is ignored, a
    key that is gone is skipped."""
    with transaction.atomic():
        for public_id, at in used.items():
            unseen = Q(last_used_at__isnull=True) | Q(last_used_at__lt=at)
            ApiKey.objects.filter(unseen, public_id=public_id).update(last_used_at=at)


def _sets_bounds(actor: Viewer, tenant_id: int) -> bool:
    """Whether what this person limits is a bound for members (TEN-02)."""
    return actor.is_operator or actor.roles.get(tenant_id) in MANAGES_ALL


def _may_issue(actor: Viewer, tenant: Tenant, member: User) -> None:
    own = actor.roles.get(tenant.pk)
    for_self = member.pk == actor.user_id
    if not (actor.is_operator or own in MANAGES_ALL or (own == Role.MEMBER and for_self)):
        raise Forbidden
    if actor.is_operator and for_self:
        return
    role = Membership.objects.filter(tenant=tenant, user=member).values_list("role", flat=True).first()
    if role is None:
        raise Invalid([FieldError("member", "not_a_member", member.get_username())])
    if role == Role.VIEWER:
        raise Invalid([FieldError("member", "viewer_holds_no_key", member.get_username())])


def _may_change(actor: Viewer, key: ApiKey) -> None:
    get_manageable(actor, ApiKey.objects.all(), key.public_id, creator="member")
