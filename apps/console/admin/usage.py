"""Usage records, how far each journal was read, what waits where. Written by the flusher alone (GW-12)."""

from django.contrib import admin

from apps.console.admin.base import ReadOnlyAdmin
from apps.usage.models import UsageFile, UsageHost, UsageRecord


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
