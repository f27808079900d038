"""Reads of people and tenants, scope first (TEN-02, TEN-04)."""

from datetime import datetime

from django.db.models import QuerySet

from apps.core.errors import NotFound
from apps.core.ids import looks_like_id
from apps.tenants import presence
from apps.tenants.models import ApiKey, Membership, OneTimeLink, SignedIn, Tenant, User
from apps.tenants.scope import MANAGES_ALL, Viewer, get_visible, visible
from apps.tenants.services.links import open_invitations


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


def managed_tenants(viewer: Viewer) -> QuerySet[Tenant]:
    """Those whose people the viewer manages."""
    rows = Tenant.objects.order_by("slug")
    return rows if viewer.is_operator else rows.filter(pk__in=viewer.tenants_with(MANAGES_ALL))


def managed_membership(viewer: Viewer, user_id: str, tenant_slug: str = "") -> Membership:
    """A membership that the viewer manages, by the person's public id; the first by tenant where none
    is named. Raises NotFound."""
    rows = Membership.objects.filter(tenant__in=managed_tenants(viewer)).select_related("user", "tenant")
    if tenant_slug:
        rows = rows.filter(tenant__slug=tenant_slug)
    wanted = rows.filter(user__public_id=user_id).order_by("tenant__slug")
    found = wanted.first() if looks_like_id(user_id) and tenant_slug.isprintable() else None
    if found is None:
        raise NotFound
    return found


def person_by_id(viewer: Viewer, user_id: str) -> User:
    """Anybody for an operator, a member of a tenant of theirs for owners and admins. Raises NotFound."""
    rows = User.objects.all()
    if not viewer.is_operator:
        managed = Membership.objects.filter(tenant__in=viewer.tenants_with(MANAGES_ALL))
        rows = rows.filter(pk__in=managed.values("user"))
    found = rows.filter(public_id=user_id).first() if looks_like_id(user_id) else None
    if found is None:
        raise NotFound
    return found


def invitation_by_id(
    viewer: Viewer, link_id: str, now: datetime, *, tenant: Tenant | None = None
) -> OneTimeLink:
    """An open invitation into a tenant that the viewer manages. Raises NotFound."""
    rows = open_invitations(now).filter(tenant__in=managed_tenants(viewer))
    if tenant is not None:
        rows = rows.filter(tenant=tenant)
    found = rows.filter(public_id=link_id).first() if looks_like_id(link_id) else None
    if found is None:
        raise NotFound
    return found


def sessions(viewer: Viewer, now: datetime, *, user_id: str = "") -> QuerySet[SignedIn]:
    """Where a person is signed in: oneself, for an operator anybody. Raises NotFound."""
    if viewer.user_id is None:
        raise NotFound
    rows = User.objects.all() if viewer.is_operator else User.objects.filter(pk=viewer.user_id)
    if not user_id:
        rows = rows.filter(pk=viewer.user_id)
    elif not looks_like_id(user_id):
        raise NotFound
    else:
        rows = rows.filter(public_id=user_id)
    person = rows.first()
    if person is None:
        raise NotFound
    return presence.live(person, now)


def session_by_id(viewer: Viewer, public_id: str) -> SignedIn:
    """One of one's own, for an operator anybody's. Raises NotFound."""
    rows = SignedIn.objects.select_related("user")
    if not viewer.is_operator:
        rows = rows.filter(user__pk=viewer.user_id or 0)
    found = rows.filter(public_id=public_id).first() if looks_like_id(public_id) else None
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
