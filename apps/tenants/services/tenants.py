"""Tenants: made, changed, suspended and resumed by operators (TEN-01, TEN-07)."""

from collections.abc import Collection
from typing import Any

from django.db import IntegrityError, transaction

from apps.core import audit, hints, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid
from apps.tenants.models import Quota, Tenant, TenantStatus
from apps.tenants.quotas import KINDS
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of

SHARING = ("lends", "loan_max_minutes", "weight")
"""Whether and for how long training may borrow the cards of a tenant's sleeping services (SHARE-04), and its
weight beside others where shares are fair (SCHED-17)."""


def create_tenant(
    *, actor: Viewer, slug: str, name: str = "", quota: dict[str, int | None] | None = None
) -> Tenant:
    """A tenant with its quota row; a kind of `quota` that is not named has no limit.

    Raises Forbidden for anyone but an operator, Conflict `name_taken` for a taken slug.
    """
    _operators_only(actor)
    try:
        with transaction.atomic():
            tenant = Tenant.objects.create(slug=slug, name=name or slug)
            Quota.objects.create(tenant=tenant, **_checked(quota or {}))
            _note(actor, "create_tenant", tenant, after={"name": tenant.name, **_checked(quota or {})})
    except IntegrityError:
        raise Conflict("name_taken", errors=[FieldError("slug", "name_taken", slug)], value=slug) from None
    return tenant


def change_tenant(
    *,
    actor: Viewer,
    tenant: Tenant,
    name: str | None = None,
    quota: dict[str, int | None] | None = None,
    sharing: dict[str, Any] | None = None,
) -> Tenant:
    """Change the name, the named kinds of the quota (None as a limit = no limit) and what is named of
    SHARING; a lower limit ends nothing that runs, nor a loan. Raises Forbidden for anyone but an operator."""
    _operators_only(actor)
    with transaction.atomic():
        old = _present(tenant)
        if name is not None:
            Tenant.objects.filter(pk=tenant.pk).update(name=name)
        if sharing:
            Tenant.objects.filter(pk=tenant.pk).update(**_named(sharing, SHARING))
        if quota:
            Quota.objects.update_or_create(tenant=tenant, defaults=_checked(quota))
        before, after = audit.changes(old, _present(tenant))
        if after:
            _note(actor, "change_tenant", tenant, before=before, after=after)
    tenant.refresh_from_db()
    return tenant


def suspend_tenant(*, actor: Viewer, tenant: Tenant, reason: str) -> Tenant:
    """From now on its keys answer 403 with the reason and nothing of it is placed; nothing of it is
    deleted (TEN-01). Raises Forbidden for anyone but an operator, Invalid without a reason."""
    _operators_only(actor)
    if not reason.strip():
        raise Invalid([FieldError("suspended_reason", "required")])
    return _set_status(actor, "suspend_tenant", tenant, TenantStatus.SUSPENDED, reason.strip())


def resume_tenant(*, actor: Viewer, tenant: Tenant) -> Tenant:
    """End a suspension; what waited is placed again. Raises Forbidden for anyone but an operator."""
    _operators_only(actor)
    return _set_status(actor, "resume_tenant", tenant, TenantStatus.ACTIVE, "")


def _set_status(actor: Viewer, verb: str, tenant: Tenant, status: TenantStatus, reason: str) -> Tenant:
    with transaction.atomic():
        present = Tenant.objects.select_for_update().get(pk=tenant.pk)
        old = audit.picture(present, "status", "suspended_reason")
        Tenant.objects.filter(pk=tenant.pk).update(status=status, suspended_reason=reason)
        before, after = audit.changes(old, {"status": status.value, "suspended_reason": reason})
        _note(actor, verb, tenant, before=before, after=after)
        versions.bump()
        hints.kick("scheduling.place")
    tenant.refresh_from_db()
    return tenant


def _present(tenant: Tenant) -> dict[str, Any]:
    """Name, limits and how it shares as they are now, read under lock."""
    own = Tenant.objects.select_for_update().values("name", *SHARING).get(pk=tenant.pk)
    limits = Quota.objects.filter(tenant=tenant).values(*KINDS).first() or dict.fromkeys(KINDS)
    return {**own, **limits}


def _note(actor: Viewer, verb: str, tenant: Tenant, **values: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="tenant",
        public_id=tenant.public_id,
        name=tenant.slug,
        tenant=tenancy_of(tenant),
        **values,
    )


def _operators_only(actor: Viewer) -> None:
    if not actor.is_operator:
        raise Forbidden


def _checked(quota: dict[str, int | None]) -> dict[str, Any]:
    return _named(quota, KINDS)


def _named(values: dict[str, int | None], names: Collection[str]) -> dict[str, Any]:
    unknown = set(values) - set(names)
    if unknown:
        raise ValueError(f"nothing of a tenant is called {sorted(unknown)}")
    return dict(values)
