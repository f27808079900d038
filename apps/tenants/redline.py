"""The red line (TEN-03): whether two tenants may share a card or a service.

The same tenant may; two tenants may when an operator put both into one shared group. Every question
that can not be answered counts as no.
"""

import logging
from collections import defaultdict
from contextlib import nullcontext

from django.db import connection, transaction

from apps.tenants.models import SharedGroup, Tenant

log = logging.getLogger("heteroflow.redline")


def may_share(a: Tenant | int, b: Tenant | int) -> bool:
    """Whether tenants (or their row ids) share. Never raises: an error is logged and means no."""
    try:
        first, second = _row_id(a), _row_id(b)
        if first == second:
            return True
        with _guarded():
            return SharedGroup.objects.filter(tenants=first).filter(tenants=second).exists()
    except Exception:
        log.exception("whether two tenants share could not be answered: counts as no")
        return False


def sharing() -> dict[int, frozenset[int]]:
    """For a snapshot: by tenant (row id), the others it shares with. A tenant that is missing shares
    with nobody. Never raises: an error is logged and means that nobody shares."""
    try:
        together: dict[int, set[int]] = defaultdict(set)
        with _guarded():
            rows = list(SharedGroup.tenants.through.objects.values_list("sharedgroup_id", "tenant_id"))
        for group_id, tenant_id in rows:
            together[group_id].add(tenant_id)
        others: dict[int, set[int]] = defaultdict(set)
        for members in together.values():
            for tenant_id in members:
                others[tenant_id] |= members - {tenant_id}
        return {tenant_id: frozenset(found) for tenant_id, found in others.items()}
    except Exception:
        log.exception("which tenants share could not be read: counts as none")
        return {}


def _row_id(tenant: Tenant | int) -> int:
    row_id = tenant.pk if isinstance(tenant, Tenant) else tenant
    if not isinstance(row_id, int):
        raise TypeError(f"not a tenant's row id: {row_id!r}")
    return row_id


def _guarded() -> transaction.Atomic | nullcontext[None]:
    """A savepoint inside a transaction, so that a failing question does not spoil the caller's."""
    return transaction.atomic() if connection.in_atomic_block else nullcontext()
