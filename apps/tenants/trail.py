"""The audit trail as people read it (TEN-08): operators all of it, owners and admins their tenant's.

Owns that scope, and how a tenant stands in a row. Rows are written by `core.audit.note` alone.
"""

from django.db.models import QuerySet

from apps.core.audit import Tenancy
from apps.core.errors import Forbidden
from apps.core.models import AuditEntry
from apps.tenants.models import Tenant
from apps.tenants.scope import MANAGES_ALL, Viewer


def tenancy_of(tenant: Tenant) -> Tenancy:
    """A tenant as a row of the trail names it."""
    return Tenancy(tenant.public_id, tenant.slug)


def may_read(viewer: Viewer) -> bool:
    """Whether there is a trail for this viewer at all."""
    return viewer.is_operator or bool(viewer.tenants_with(MANAGES_ALL))


def entries(viewer: Viewer) -> QuerySet[AuditEntry]:
    """The rows in sight, newest first. Raises Forbidden for whoever manages no tenant."""
    if viewer.is_operator:
        return AuditEntry.objects.all()
    if not may_read(viewer):
        raise Forbidden
    managed = Tenant.objects.filter(pk__in=viewer.tenants_with(MANAGES_ALL))
    return AuditEntry.objects.filter(tenant_id__in=list(managed.values_list("public_id", flat=True)))
