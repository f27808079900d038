"""Usage: a row per gateway request (GW-12), their sums by hour and day, how far each journal was read, what
waits where; card time."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from apps.usage.policy.cardtime import Kind


class UsageRecord(models.Model):
    """Fields as apps.usage.record.UsageEntry. No foreign keys: names stay when things go. `totalled`: it is
    in its UsageTotals, and may go once it is old."""

    request_id = models.CharField(max_length=64, unique=True)
    started_at = models.DateTimeField(db_index=True)
    path = models.CharField(max_length=100)
    ending = models.CharField(max_length=30)
    http_status = models.PositiveIntegerField()
    tenant_id = models.CharField(max_length=40, blank=True, default="", db_index=True)
    tenant_slug = models.CharField(max_length=50, blank=True, default="")
    member = models.CharField(max_length=150, blank=True, default="")
    key_id = models.CharField(max_length=40, blank=True, default="")
    key_prefix = models.CharField(max_length=20, blank=True, default="")
    model = models.CharField(max_length=200, blank=True, default="")
    route_id = models.CharField(max_length=40, blank=True, default="")
    group_id = models.CharField(max_length=40, blank=True, default="")
    task_id = models.CharField(max_length=40, blank=True, default="")
    attempt = models.PositiveIntegerField(default=0)
    stream = models.BooleanField(default=False)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    estimated = models.BooleanField(default=False)
    ttft_ms = models.PositiveIntegerField(null=True)
    duration_ms = models.PositiveIntegerField(default=0)
    totalled = models.BooleanField(default=False)

    class Meta:
        ordering = ["-started_at", "-pk"]
        indexes = [models.Index(fields=["id"], condition=models.Q(totalled=False), name="untotalled_records")]

    def __str__(self) -> str:
        return self.request_id


class Span(models.TextChoices):
    HOUR = "hour", _("hour")
    DAY = "day", _("day")


class UsageTotal(models.Model):
    """Sums of the records of one hour or day (UTC) that are alike in all that is asked for. `failed`: those
    that did not complete; `estimated`: those whose tokens the engine did not report."""

    span = models.CharField(max_length=10, choices=Span.choices)
    began_at = models.DateTimeField()
    tenant_id = models.CharField(max_length=40, blank=True)
    tenant_slug = models.CharField(max_length=50, blank=True)
    member = models.CharField(max_length=150, blank=True)
    key_id = models.CharField(max_length=40, blank=True)
    key_prefix = models.CharField(max_length=20, blank=True)
    model = models.CharField(max_length=200, blank=True)
    group_id = models.CharField(max_length=40, blank=True)
    requests = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    estimated = models.PositiveBigIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0)
    duration_ms = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-began_at", "tenant_slug", "member", "model", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "span",
                    "began_at",
                    "tenant_id",
                    "tenant_slug",
                    "member",
                    "key_id",
                    "key_prefix",
                    "model",
                    "group_id",
                ],
                name="one_usage_total_of_a_kind",
            )
        ]
        indexes = [models.Index(fields=["tenant_id", "span", "began_at"], name="usage_totals_of_tenant")]

    def __str__(self) -> str:
        return f"{self.span} {self.began_at:%Y-%m-%d %H:%M} {self.tenant_slug} {self.model}"


class UsageFile(models.Model):
    """A gateway process's journal file and the offset up to which its lines are rows."""

    name = models.CharField(max_length=200, unique=True)
    offset = models.BigIntegerField(default=0)
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"{self.name}@{self.offset}"


class UsageHost(models.Model):
    """What a host's gateways said at `updated_at` of its journal files: when the oldest call began that is no
    row yet; empty: all are rows."""

    name = models.CharField(max_length=150, unique=True)
    oldest_at = models.DateTimeField(null=True)
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class CardTime(models.Model):
    """How long one attempt of a task held how much of its cards on one day (UTC), as running, sleeping or
    lent: milliseconds of a whole card (GW-18). No foreign keys: names stay when things go."""

    day = models.DateField()
    kind = models.CharField(max_length=10, choices=[(kind.value, kind.value) for kind in Kind])
    task_id = models.CharField(max_length=40)
    attempt = models.PositiveIntegerField()
    tenant_id = models.CharField(max_length=40)
    tenant_slug = models.CharField(max_length=50)
    member = models.CharField(max_length=150)
    task_type = models.CharField(max_length=20)
    group_id = models.CharField(max_length=40)
    group_name = models.CharField(max_length=200)
    card_ms = models.PositiveBigIntegerField()
    counted_until = models.DateTimeField()

    class Meta:
        ordering = ["-day", "tenant_slug", "group_name", "task_id", "attempt", "kind"]
        constraints = [
            models.UniqueConstraint(fields=["task_id", "attempt", "day", "kind"], name="one_card_time_a_day")
        ]
        indexes = [models.Index(fields=["tenant_id", "day"], name="card_time_of_tenant")]

    def __str__(self) -> str:
        return f"{self.task_id}/{self.attempt} {self.day} {self.kind}"
