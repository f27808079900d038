"""Usage: its page with bars and sums, records, how far each journal was read, what waits where (GW-12). The
flusher and the loops alone write them. Card time (GW-18)."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils import formats
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin
from apps.core.clock import utc_now
from apps.tenants.models import Tenant
from apps.tenants.scope import viewer_of
from apps.usage.card_times import write_csv
from apps.usage.models import CardTime, UsageFile, UsageHost, UsageRecord, UsageTotal
from apps.usage.overview import PeriodForm, build_usage


@admin.register(UsageRecord)
class UsageRecordAdmin(ReadOnlyAdmin):
    """One row per request to the gateway."""

    list_display = [
        "started_at",
        "tenant_slug",
        "member",
        "model",
        "ending",
        "http_status",
        "prompt_tokens",
        "completion_tokens",
        "ttft_ms",
        "duration_ms",
    ]
    list_filter = ["ending", "http_status", "stream", "estimated"]
    search_fields = ["request_id", "tenant_slug", "member", "model", "key_prefix", "task_id"]
    date_hierarchy = "started_at"


@admin.register(UsageTotal)
class UsageTotalAdmin(ReadOnlyAdmin):
    """Sums of records by hour and day."""

    list_display = [
        "began_at",
        "span",
        "tenant_slug",
        "member",
        "key_prefix",
        "model",
        "requests",
        "failed",
        "prompt_tokens",
        "completion_tokens",
    ]
    list_filter = ["span"]
    search_fields = ["tenant_slug", "member", "model", "key_prefix", "key_id", "group_id"]
    date_hierarchy = "began_at"

    def get_urls(self) -> list[Any]:
        page = path("overview/", self.guarded(self.overview), name="usage_usagetotal_overview")
        return [page, *super().get_urls()]

    def overview(self, request: HttpRequest) -> HttpResponse:
        """Requests and tokens of all tenants, or of one, over some days."""
        now = utc_now()
        tenants = list(Tenant.objects.order_by("name").values_list("slug", "name"))
        form = PeriodForm(request.GET.dict(), today=now.date(), tenants=tenants)
        found = build_usage(viewer_of(request.user), form, now)
        return self.show(request, "console/usage.html", _("Usage"), opts=None, form=form, usage=found)


@admin.register(UsageFile)
class UsageFileAdmin(ReadOnlyAdmin):
    """Journals that still are, or were, read into rows."""

    list_display = ["name", "offset", "updated_at"]
    search_fields = ["name"]


@admin.register(UsageHost)
class UsageHostAdmin(ReadOnlyAdmin):
    """What each host's gateways last said."""

    list_display = ["name", "oldest_at", "updated_at"]
    search_fields = ["name"]


@admin.register(CardTime)
class CardTimeAdmin(ReadOnlyAdmin):
    """How long cards were held, by day, attempt and kind (GW-18)."""

    list_display = [
        "day",
        "tenant_slug",
        "member",
        "task_type",
        "group_name",
        "task_id",
        "kind",
        "card_hours",
    ]
    list_filter = ["kind", "task_type", "tenant_slug"]
    search_fields = ["tenant_slug", "member", "group_name", "group_id", "task_id"]
    date_hierarchy = "day"
    actions = ["export"]

    @display(description=_("card hours"), ordering="card_ms")
    def card_hours(self, row: CardTime) -> str:
        return formats.number_format(row.card_ms / 3_600_000, 2)

    @admin.action(description=_("Download the selected rows as CSV"), permissions=["operate"])
    def export(self, request: HttpRequest, queryset: QuerySet[CardTime]) -> HttpResponse:
        headers = {"Content-Disposition": 'attachment; filename="card-time.csv"'}
        return HttpResponse("".join(write_csv(queryset)), content_type="text/csv", headers=headers)
