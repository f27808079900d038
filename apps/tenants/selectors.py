"""Reads of people and tenants, scope first (TEN-02, TEN-04)."""

from django.db.models import QuerySet

from apps.core.errors import NotFound
from apps.core.ids import looks_like_id
from apps.tenants.models import ApiKey, Membership, Tenant
from apps.tenants.scope import Viewer, get_visible, visible


def tenants(viewer: Viewer) -> QuerySet[Tenant]:
    """All for an operator, else those that the viewer belongs to."""
    rows = Tenant.objects.select_related("quota")
    return rows if viewer.is_operator else rows.filter(pk__in=viewer.roles)


def tenant_by_id(viewer: Viewer, public_id: str) -> Tenant:
    """Raises NotFound."""
    found = tenants(viewer).filter(public_id=public_id).first() if looks_like_id(public_id) else None
    if found is None:
        raise NotFound
    return found


def members(viewer: Viewer, tenant: Tenant) -> QuerySet[Membership]:
    """Memberships of a tenant: all of them, or a mere member's own."""
    rows = Membership.objects.filter(tenant=tenant).select_related("user", "tenant")
    return visible(viewer, rows, creator="user").order_by("user__username")


def membership_of(viewer: Viewer, tenant: Tenant, user_id: str) -> Membership:
    """One membership by the person's public id. Raises NotFound."""
    rows = members(viewer, tenant)
    found = rows.filter(user__public_id=user_id).first() if looks_like_id(user_id) else None
    if found is None:
        raise NotFound
    return found


def keys(viewer: Viewer) -> QuerySet[ApiKey]:
    """Keys in sight, revoked ones included: a member's own, or all of the tenant's."""
    return visible(viewer, ApiKey.objects.select_related("tenant", "member"), creator="member")


def key_by_id(viewer: Viewer, public_id: str) -> ApiKey:
    """Raises NotFound."""
    return get_visible(viewer, ApiKey.objects.select_related("tenant", "member"), public_id, creator="member")


def live_keys() -> QuerySet[ApiKey]:
    """The keys that open anything at all, whosever they are (for the gateway): not revoked, and
    their member's account is active. Expiry and suspension are judged at each call (GW-02)."""
    rows = ApiKey.objects.filter(revoked_at__isnull=True, member__is_active=True)
    return rows.select_related("tenant", "member")
