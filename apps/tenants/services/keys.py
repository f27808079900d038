"""Gateway keys (TEN-06): issued, rotated, revoked. The plain value is returned once and kept nowhere.

Every change raises the gateway's version in the same transaction, so that a revoked key ends within
a second.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Q

from apps.core import audit, secrets, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.tenants.models import ApiKey, Membership, Role, Tenant, User
from apps.tenants.scope import MANAGES_ALL, Viewer, get_manageable
from apps.tenants.trail import tenancy_of

_MODELS_MAX = 200


def issue_key(
    *,
    actor: Viewer,
    tenant: Tenant,
    member: User,
    name: str,
    allowed_models: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    now: datetime,
) -> tuple[ApiKey, str]:
    """A key and its plain value. `allowed_models` None = every model of the tenant, empty = none.

    Members issue for themselves, owners and admins for members of their tenant, operators for
    anybody there and for themselves. Raises Forbidden; Invalid for a member who is not in the
    tenant or only a viewer, and for an expiry that is not in the future.
    """
    _may_issue(actor, tenant, member)
    if expires_at is not None and expires_at <= now:
        raise Invalid([FieldError("expires_at", "not_in_future", expires_at.isoformat())])
    plain = secrets.new_api_key()
    with transaction.atomic():
        key = ApiKey.objects.create(
            tenant=tenant,
            member=member,
            name=name,
            sha256=secrets.sha256_hex(plain),
            prefix=secrets.display_prefix(plain),
            allowed_models=_models(allowed_models),
            expires_at=expires_at,
        )
        after = {"member": member.get_username(), "prefix": key.prefix}
        note_key(actor, "issue_key", key, after=after | audit.picture(key, "allowed_models", "expires_at"))
        versions.bump()
    return key, plain


def rotate_key(*, actor: Viewer, key: ApiKey, now: datetime) -> tuple[ApiKey, str]:
    """A new plain value for the same key row; the one before ends at once.

    Raises Conflict for a revoked or expired key; NotFound or Forbidden as get_manageable.
    """
    _may_change(actor, key)
    plain = secrets.new_api_key()
    with transaction.atomic():
        present = ApiKey.objects.select_for_update().get(pk=key.pk)
        if present.revoked_at is not None:
            raise Conflict("already_revoked")
        if present.expires_at is not None and present.expires_at <= now:
            raise Conflict("key_expired", expired_at=present.expires_at.isoformat())
        old_prefix = present.prefix
        present.sha256 = secrets.sha256_hex(plain)
        present.prefix = secrets.display_prefix(plain)
        present.last_used_at = None
        present.save(update_fields=["sha256", "prefix", "last_used_at"])
        note_key(
            actor, "rotate_key", present, before={"prefix": old_prefix}, after={"prefix": present.prefix}
        )
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


def _models(names: Sequence[str] | None) -> list[str] | None:
    if names is None:
        return None
    unique = list(dict.fromkeys(names))
    if len(unique) > _MODELS_MAX:
        error = FieldError("allowed_models", "out_of_range", len(unique), {"min": 0, "max": _MODELS_MAX})
        raise Invalid([error])
    return unique
