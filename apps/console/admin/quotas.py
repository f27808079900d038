"""Limits per tenant (TEN-07); changed here or on the tenant's page, by the same service."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from apps.console.admin.base import OperatorAdmin
from apps.tenants import services
from apps.tenants.models import Quota
from apps.tenants.quotas import KINDS
from apps.tenants.scope import viewer_of


@admin.register(Quota)
class QuotaAdmin(OperatorAdmin):
    """Empty = no limit. A lower limit ends nothing that runs."""

    list_display = ["tenant", *KINDS]
    search_fields = ["tenant__slug", "tenant__name"]
    list_select_related = ["tenant"]
    fields = ["tenant", *KINDS]
    readonly_fields = ["tenant"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # made with its tenant

    def save_model(self, request: HttpRequest, obj: Quota, form: Any, change: Any) -> None:
        limits = {kind: getattr(obj, kind) for kind in KINDS}
        services.change_tenant(actor=viewer_of(request.user), tenant=obj.tenant, quota=limits)
