"""Rows of the base: leases, last runs of ticks, versions of published tables, the audit trail."""

from typing import Any, NoReturn

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


class AppendOnly(Exception):
    """A row of the audit trail was to be changed or removed: an error in the program (TEN-08)."""


class AuditRows(models.QuerySet["AuditEntry"]):
    """Rows that are added and read, never changed."""

    def update(self, **kwargs: Any) -> NoReturn:
        raise AppendOnly("the audit trail is only added to")

    def delete(self) -> NoReturn:
        raise AppendOnly("the audit trail is only added to")


class AuditEntry(models.Model):
    """One act: who, what, to which object, when, from where, before and after (TEN-08). All by value:
    a row outlives the person and the object that it names. `tenant_id` is a public id, empty for what
    belongs to no tenant."""

    at = models.DateTimeField(db_index=True)
    actor_id = models.CharField(max_length=40, blank=True, default="")
    actor = models.CharField(max_length=150)
    by_operator = models.BooleanField(default=False)
    verb = models.CharField(max_length=60)
    object_kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64, blank=True, default="", db_index=True)
    object_name = models.CharField(max_length=200, blank=True, default="")
    tenant_id = models.CharField(max_length=40, blank=True, default="")
    tenant = models.CharField(max_length=200, blank=True, default="")
    address = models.CharField(max_length=45, blank=True, default="")
    request_id = models.CharField(max_length=64, blank=True, default="")
    before = models.JSONField(default=dict)
    after = models.JSONField(default=dict)

    objects = AuditRows.as_manager()

    class Meta:
        ordering = ["-at", "-pk"]
        indexes = [models.Index(fields=["tenant_id", "at"], name="audit_of_a_tenant")]

    def __str__(self) -> str:
        return f"{self.actor}: {self.verb} {self.object_name}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise AppendOnly("the audit trail is only added to")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise AppendOnly("the audit trail is only added to")
