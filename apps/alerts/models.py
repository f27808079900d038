"""Alerts, where they are told to, and each message on its way there (OPS-09)."""

from django.db import models
from django.db.models import Q

from apps.core.fields import EncryptedTextField, PublicIdField


class Alert(models.Model):
    """Something that an operator should look at. `object_id` is the public id or name of what it is about,
    empty for the platform itself. Repeats raise `times` and renew `last_at`."""

    public_id = PublicIdField(kind="alert")
    code = models.CharField(max_length=50)
    object_id = models.CharField(max_length=150, blank=True, default="")
    params = models.JSONField(default=dict)
    opened_at = models.DateTimeField()
    last_at = models.DateTimeField()
    times = models.PositiveIntegerField(default=1)
    closed_at = models.DateTimeField(null=True)
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_by = models.CharField(max_length=150, blank=True, default="")

    class Meta:
        ordering = ["-opened_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["code", "object_id"], condition=Q(closed_at__isnull=True), name="one_open_alert_each"
            )
        ]
        indexes = [models.Index(fields=["object_id"], name="alerts_of_object")]

    def __str__(self) -> str:
        return f"{self.code} {self.object_id}".strip()


class Webhook(models.Model):
    """An address that operators have alerts told to. The secret signs; it is never shown. Nothing is sent
    before `next_at`; empty: at once."""

    public_id = PublicIdField(kind="webhook")
    name = models.CharField(max_length=100, unique=True)
    url = models.CharField(max_length=500)
    secret = EncryptedTextField()
    active = models.BooleanField(default=True)
    created_at = models.DateTimeField()
    failures_in_a_row = models.PositiveIntegerField(default=0)
    tried_at = models.DateTimeField(null=True)
    next_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Delivery(models.Model):
    """One message to one webhook. `body` is what is signed and sent, the same at each try. Not `waiting`:
    nothing more is tried, for it arrived or was given up."""

    public_id = PublicIdField(kind="delivery")
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    alert = models.ForeignKey(Alert, null=True, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=10)
    body = models.TextField()
    created_at = models.DateTimeField()
    waiting = models.BooleanField(default=True)
    attempts = models.PositiveIntegerField(default=0)
    delivered_at = models.DateTimeField(null=True)
    last_status = models.PositiveIntegerField(null=True)
    last_error = models.CharField(max_length=50, blank=True, default="")

    class Meta:
        ordering = ["-created_at", "-pk"]
        indexes = [
            models.Index(
                fields=["webhook", "created_at"], condition=Q(waiting=True), name="waiting_deliveries"
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.event}"
