"""Quotas (TEN-07): the row that is locked while something is created, and the comparison.

Owns the limits only; the app that owns the rows counts them inside the same transaction. Whoever
creates or scales calls `lock` first, so that parallel requests count one after the other.
"""

from django.db import connection, transaction

from apps.core.errors import Refusal
from apps.tenants.models import Quota, Tenant

KINDS = ("gpus", "task_groups", "replicas", "endpoints", "tokens_per_day", "tokens_per_month")


def lock(tenant: Tenant) -> Quota:
    """The tenant's quota row, held until the transaction ends; made without limits where missing.

    Raises TransactionManagementError outside of `transaction.atomic()`, where it would hold nothing.
    On SQLite the transaction itself, which began IMMEDIATE, is the lock.
    """
    if not connection.in_atomic_block:
        raise transaction.TransactionManagementError("a quota is locked inside transaction.atomic() only")
    Quota.objects.get_or_create(tenant=tenant)
    return Quota.objects.select_for_update().get(tenant=tenant)


def ensure(quota: Quota, what: str, *, used: int, asked: int) -> None:
    """Refuse `asked` more of a kind of KINDS when `used` are counted; asking for none always passes.

    Raises Refusal 403 `quota_exceeded` with what, limit, used and asked.
    """
    if what not in KINDS:
        raise ValueError(f"no such kind of quota: {what}")
    limit: int | None = getattr(quota, what)
    if limit is not None and asked > 0 and used + asked > limit:
        raise Refusal("quota_exceeded", 403, what=what, limit=limit, used=used, asked=asked)
