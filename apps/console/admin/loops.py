"""The loops' own records: last runs, leases, versions of published tables, pieces of logs."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin, coloured
from apps.core.models import Lease, PublishedVersion, TickRun
from apps.streams.models import LogChunk


@admin.register(TickRun)
class TickRunAdmin(ReadOnlyAdmin):
    """What each loop did last, or why it did not."""

    list_display = ["name", "shown_outcome", "finished_at", "duration_ms", "failures_in_a_row", "detail"]
    list_filter = ["outcome"]
    search_fields = ["name"]

    @display(description=_("outcome"))
    def shown_outcome(self, row: TickRun) -> str:
        if not row.outcome:
            return "-"
        return coloured(_("done"), "success") if row.outcome == "done" else coloured(_("failed"), "danger")


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    """Who may run a loop now; `fence` rises with each holder."""

    list_display = ["name", "holder", "fence", "expires_at"]
    search_fields = ["name", "holder"]


@admin.register(PublishedVersion)
class PublishedVersionAdmin(ReadOnlyAdmin):
    """A reader that sees a higher version loads its table again."""

    list_display = ["name", "version"]
    search_fields = ["name"]


@admin.register(LogChunk)
class LogChunkAdmin(ReadOnlyAdmin):
    """Where the text of a log rests; the text itself is read on the task's page."""

    list_display = ["task", "attempt", "start", "end", "created_at"]
    search_fields = ["task__name", "task__public_id"]
    list_select_related = ["task"]
