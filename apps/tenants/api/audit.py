"""The address of the audit trail (TEN-08): read only."""

from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes, texts
from apps.core.models import AuditEntry
from apps.tenants import trail
from apps.tenants.scope import viewer_of


class ActorShape(serializers.Serializer[Any]):
    id = serializers.CharField(help_text="empty for what is no person")
    name = serializers.CharField(help_text="as it was then")
    operator = serializers.BooleanField()


class ObjectShape(serializers.Serializer[Any]):
    kind = serializers.CharField()
    id = serializers.CharField()
    name = serializers.CharField(help_text="as it was then")


class AuditTenantShape(serializers.Serializer[Any]):
    id = serializers.CharField()
    slug = serializers.CharField()


class AuditShape(serializers.Serializer[Any]):
    """One act. `before` and `after` hold the changed fields; values of secret fields are ***."""

    at = serializers.DateTimeField()
    actor = ActorShape()
    verb = serializers.CharField()
    text = serializers.CharField(help_text="the verb in the caller's language")
    object = ObjectShape()
    tenant = AuditTenantShape(allow_null=True)
    address = serializers.CharField()
    request_id = serializers.CharField()
    before = serializers.DictField()
    after = serializers.DictField()


def show(entry: AuditEntry) -> dict[str, Any]:
    """An entry as the API answers it."""
    return {
        "at": serializers.DateTimeField().to_representation(entry.at),
        "actor": {"id": entry.actor_id, "name": entry.actor, "operator": entry.by_operator},
        "verb": entry.verb,
        "text": texts.say(f"did_{entry.verb}"),
        "object": {"kind": entry.object_kind, "id": entry.object_id, "name": entry.object_name},
        "tenant": {"id": entry.tenant_id, "slug": entry.tenant} if entry.tenant_id else None,
        "address": entry.address,
        "request_id": entry.request_id,
        "before": entry.before,
        "after": entry.after,
    }


class AuditFilter(filters.FilterSet):
    """`?object=tg-...&actor=ann&verb=stop_service&tenant=lab&since=...&until=...`"""

    object = filters.CharFilter(field_name="object_id", max_length=64, label=_("id of the object"))
    kind = filters.CharFilter(field_name="object_kind", max_length=40)
    actor = filters.CharFilter(method="by_actor", max_length=150, label=_("id or name of who acted"))
    verb = filters.CharFilter(field_name="verb", max_length=60)
    tenant = filters.CharFilter(field_name="tenant", max_length=50, label=_("short name of the tenant"))
    since = filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEntry
        fields: list[str] = []

    def by_actor(self, rows: QuerySet[AuditEntry], name: str, value: str) -> QuerySet[AuditEntry]:
        return rows.filter(actor=value) | rows.filter(actor_id=value)


class AuditList(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = AuditShape
    filterset_class = AuditFilter
    queryset = AuditEntry.objects.none()  # for the schema; rows come from trail

    @extend_schema(tags=["audit"], operation_id="list_audit", responses=AuditShape(many=True))
    def get(self, request: Request) -> Response:
        """Who did what, newest first: all for operators, their tenant's for owners and admins."""
        rows = trail.entries(viewer_of(request.user))
        page = self.paginate_queryset(self.filter_queryset(rows)) or []
        return self.get_paginated_response([show(entry) for entry in page])
