"""Endpoints and model routes (SVC-01): what callers name, and which group serves it; and what gateways say of
their calls."""

from django.conf import settings
from django.db import models

from apps.core.fields import EncryptedTextField, PublicIdField
from apps.tenants.models import ApiKey, Tenant
from apps.workloads.models import TaskGroup


class Balancing(models.TextChoices):
    ROUND_ROBIN = "round_robin", "round_robin"
    RANDOM = "random", "random"
    LEAST_CONNECTIONS = "least_connections", "least_connections"
    ENGINE_AWARE = "engine_aware", "engine_aware"


class Sticky(models.TextChoices):
    """By what the calls of a session stay together (GW-06); "" = they don't."""

    HEADER = "header", "header"
    USER = "user", "user"
    KEY = "key", "key"


class ExternalEngine(models.Model):
    """An OpenAI-compatible engine that nobody here runs (GW-19), for operators to point routes at. `url`: up
    to and without the /v1 of its calls; `engine_model`: what it calls the model, "" = asked of it; `revision`
    rises with another url, model or key: what is known of the one before is not held against it."""

    public_id = PublicIdField(kind="external")
    name = models.CharField(max_length=200, unique=True)
    url = models.CharField(max_length=500)
    engine_model = models.CharField(max_length=200, blank=True, default="")
    api_key = EncryptedTextField(blank=True, default="")
    revision = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ModelRoute(models.Model):
    """model name -> group or external engine (GW-03, GW-19). Lowest priority number first, then by weight;
    weight 0 = reserve."""

    public_id = PublicIdField(kind="route")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="routes")
    model_name = models.CharField(max_length=200)
    group = models.ForeignKey(TaskGroup, null=True, on_delete=models.CASCADE, related_name="routes")
    external = models.ForeignKey(ExternalEngine, null=True, on_delete=models.CASCADE, related_name="routes")
    priority = models.IntegerField(default=0)
    weight = models.PositiveIntegerField(default=100)
    version = models.CharField(max_length=50, default="v1")
    active = models.BooleanField(default=True)
    balancing = models.CharField(
        max_length=20, choices=Balancing.choices, default=Balancing.LEAST_CONNECTIONS
    )
    sticky = models.CharField(max_length=10, choices=Sticky.choices, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["model_name", "priority"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(group__isnull=True) ^ models.Q(external__isnull=True),
                name="a_route_leads_to_one_target",
            ),
            models.UniqueConstraint(fields=["tenant", "model_name", "group"], name="one_route_a_group"),
            models.UniqueConstraint(
                fields=["tenant", "model_name", "external"], name="one_route_an_external"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} -> {self.group or self.external}"


class InferenceEndpoint(models.Model):
    """The outward face of a group, with its key. It points to its group, so a deleted endpoint
    leaves no reference behind. `external_port` is kept and has no effect (SVC-07)."""

    public_id = PublicIdField(kind="endpoint")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="endpoints")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    name = models.CharField(max_length=200)
    group = models.OneToOneField(TaskGroup, on_delete=models.CASCADE, related_name="endpoint")
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.SET_NULL, related_name="endpoints")
    port = models.PositiveIntegerField()
    external_port = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="one_endpoint_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class GatewayLoad(models.Model):
    """The last word of one gateway process (SLEEP-06): fields as apps.routing.load.Load, all of one instant.
    Written by that process alone, removed by the loop that reads it."""

    name = models.CharField(max_length=200, unique=True)
    table_version = models.PositiveBigIntegerField(default=0)
    in_flight = models.JSONField(default=dict)
    held = models.JSONField(default=dict)
    used = models.JSONField(default=dict)
    backends = models.JSONField(default=dict)
    said_at = models.DateTimeField()
    left = models.BooleanField(default=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
