"""Leases with fencing numbers: at most one holder writes, also when a paused one wakes up.

A lease is taken for one run and judged by the database's clock only. Every write of a loop runs in
`Held.transaction()`, which locks the lease row where name and number match, so that a holder that
was overtaken writes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Now

from apps.core.models import Lease


class LeaseLost(Exception):
    """Another holder has taken over; nothing of this run may be written any more."""


@dataclass(frozen=True)
class Held:
    """A lease in hand: `fence` is the number that every write checks."""

    name: str
    holder: str
    fence: int

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is this holder's. Raises LeaseLost when it is not any more."""
        with transaction.atomic():
            mine = Lease.objects.filter(name=self.name, fence=self.fence, holder=self.holder)
            if connection.vendor == "sqlite":  # IMMEDIATE: the transaction is the lock
                found = mine.exists()
            else:
                found = mine.select_for_update().first() is not None
            if not found:
                raise LeaseLost(self.name)
            yield

    def renew(self, ttl_s: float) -> None:
        """Push the expiry on; the number stays. Raises LeaseLost."""
        mine = Lease.objects.filter(name=self.name, fence=self.fence, holder=self.holder)
        if not mine.update(expires_at=Now() + timedelta(seconds=ttl_s)):
            raise LeaseLost(self.name)

    def release(self) -> None:
        """Give it back; a later holder's lease is untouched."""
        Lease.objects.filter(name=self.name, fence=self.fence, holder=self.holder).update(
            holder="", expires_at=None
        )


def acquire(name: str, holder: str, ttl_s: float) -> Held | None:
    """Take a lease that is free or expired; None while another holds it."""
    fence = _take(name, holder, ttl_s)
    if fence is None and not Lease.objects.filter(name=name).exists():
        Lease.objects.get_or_create(name=name)  # the first run ever
        fence = _take(name, holder, ttl_s)
    return None if fence is None else Held(name, holder, fence)


def _take(name: str, holder: str, ttl_s: float) -> int | None:
    with transaction.atomic():
        free = Lease.objects.filter(name=name).filter(
            Q(holder="") | Q(expires_at__isnull=True) | Q(expires_at__lt=Now())
        )
        taken = free.update(holder=holder, fence=F("fence") + 1, expires_at=Now() + timedelta(seconds=ttl_s))
        if not taken:
            return None
        # the row is this transaction's until it ends, so that the number read is the one written
        return Lease.objects.values_list("fence", flat=True).get(name=name)
