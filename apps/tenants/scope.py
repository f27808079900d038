"""Who may see and change what: the viewer, and the filters that every selector starts with.

Owns TEN-02 and TEN-04: a row outside the scope is not found, never forbidden. An operator sees all;
owners and admins all of their tenant; members what they made; viewers read all of the tenant.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from apps.core.errors import FieldError, Forbidden, Invalid, NotFound
from apps.core.ids import looks_like_id
from apps.tenants.models import Membership, Role, Tenant, User

M = TypeVar("M", bound=Model)

MANAGES_ALL = frozenset({Role.OWNER, Role.ADMIN})
READS_ALL = frozenset({Role.OWNER, Role.ADMIN, Role.VIEWER})


@dataclass(frozen=True)
class Viewer:
    """The person (or loop) on whose behalf something is read or done. `roles` by tenant row id;
    `public_id` is the person's, empty for a loop."""

    name: str
    user_id: int | None = None
    is_operator: bool = False
    roles: Mapping[int, str] = field(default_factory=dict)
    public_id: str = ""

    def tenants_with(self, roles: frozenset[Role]) -> list[int]:
        return [tenant for tenant, role in self.roles.items() if role in roles]


SYSTEM = Viewer(name="system", is_operator=True)


def viewer_of(user: object) -> Viewer:
    """The viewer that a signed-in user is; nobody (sees nothing) for anyone else."""
    if not isinstance(user, User) or not user.is_active:
        return Viewer(name="nobody")
    roles = dict(Membership.objects.filter(user=user).values_list("tenant_id", "role"))
    return Viewer(
        name=user.get_username(),
        user_id=user.pk,
        is_operator=user.is_operator,
        roles=roles,
        public_id=user.public_id,
    )


def visible(
    viewer: Viewer, rows: QuerySet[M], *, tenant: str = "tenant", creator: str = "created_by"
) -> QuerySet[M]:
    """The rows that the viewer may read. `tenant` and `creator` are lookup paths to the row's own."""
    return _scoped(viewer, rows, tenant, creator, READS_ALL)


def manageable(
    viewer: Viewer, rows: QuerySet[M], *, tenant: str = "tenant", creator: str = "created_by"
) -> QuerySet[M]:
    """The rows that the viewer may change."""
    return _scoped(viewer, rows, tenant, creator, MANAGES_ALL)


def _scoped(
    viewer: Viewer, rows: QuerySet[M], tenant: str, creator: str, whole: frozenset[Role]
) -> QuerySet[M]:
    if viewer.is_operator:
        return rows
    if viewer.user_id is None:
        return rows.none()
    mine = {f"{tenant}__in": viewer.tenants_with(frozenset({Role.MEMBER})), creator: viewer.user_id}
    return rows.filter(Q(**{f"{tenant}__in": viewer.tenants_with(whole)}) | Q(**mine))


def get_manageable(
    viewer: Viewer,
    rows: QuerySet[M],
    public_id: str,
    *,
    tenant: str = "tenant",
    creator: str = "created_by",
) -> M:
    """One row to change. Raises NotFound when it is out of sight, Forbidden when it is only readable."""
    if not looks_like_id(public_id):
        raise NotFound
    wanted = rows.filter(public_id=public_id)
    found = manageable(viewer, wanted, tenant=tenant, creator=creator).first()
    if found is not None:
        return found
    if visible(viewer, wanted, tenant=tenant, creator=creator).exists():
        raise Forbidden
    raise NotFound


def get_visible(
    viewer: Viewer,
    rows: QuerySet[M],
    public_id: str,
    *,
    tenant: str = "tenant",
    creator: str = "created_by",
) -> M:
    """One row to read. Raises NotFound."""
    found = None
    if looks_like_id(public_id):  # a text that can be no id, such as one with NUL, is not asked for
        found = visible(viewer, rows.filter(public_id=public_id), tenant=tenant, creator=creator).first()
    if found is None:
        raise NotFound
    return found


def pick_tenant(viewer: Viewer, slug: str | None, *, to_create: bool = True) -> Tenant:
    """The tenant that a new object goes to: the named one, or the only one the viewer has.

    Raises Invalid when it must be named, NotFound for one out of sight, Forbidden for a mere viewer.
    """
    reachable = Tenant.objects.all() if viewer.is_operator else Tenant.objects.filter(pk__in=viewer.roles)
    if slug:
        tenant = reachable.filter(slug=slug).first() if slug.isprintable() else None
        if tenant is None:
            raise NotFound("tenant", slug)
    else:
        found = list(reachable.order_by("slug")[:20])
        if len(found) != 1:
            code = "tenant_required" if found else "no_tenant"
            names = ", ".join(t.slug for t in found)
            raise Invalid([FieldError("tenant", code, None, {"choices": names})])
        tenant = found[0]
    if to_create and not viewer.is_operator and viewer.roles[tenant.pk] == Role.VIEWER:
        raise Forbidden
    return tenant
