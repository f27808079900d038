"""Rows of the base: leases, last runs of ticks, versions of published tables."""

from django.db import models


class Lease(models.Model):
    """Who may run a loop now. `fence` rises with each new holder; a write checks it (SCHED-01)."""

    name = models.CharField(max_length=100, primary_key=True)
    holder = models.CharField(max_length=200, blank=True, default="")
    fence = models.BigIntegerField(default=0)
    expires_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} #{self.fence}"


class TickRun(models.Model):
    """The last run of a tick: what it did, or why it did not."""

    name = models.CharField(max_length=100, primary_key=True)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    duration_ms = models.IntegerField(null=True)
    outcome = models.CharField(max_length=20, blank=True, default="")
    detail = models.JSONField(default=dict)
    failures_in_a_row = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome}"


class PublishedVersion(models.Model):
    """Raised in the transaction that changes what a published table shows (GW-16)."""

    name = models.CharField(max_length=50, primary_key=True)
    version = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"
