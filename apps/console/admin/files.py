"""Requests for files of tasks and their pieces: to read. The bytes themselves are not shown here."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin, ReadOnlyRows, coloured
from apps.core import texts
from apps.files.models import FilePiece, FileRequest

COLOURS = {"ready": "success", "failed": "danger", "waiting": "warning", "sending": "info"}
WORDS = {"ready": _("ready"), "failed": _("failed"), "waiting": _("waiting"), "sending": _("sending")}


class PieceRows(ReadOnlyRows):
    model = FilePiece
    fields = ["start", "end"]
    readonly_fields = fields
    show_change_link = False


@admin.register(FileRequest)
class FileRequestAdmin(ReadOnlyAdmin):
    """Who asked for what of which task; it goes with its bytes when it expires."""

    list_display = ["public_id", "task", "kind", "path", "shown_status", "size", "created_by", "created_at"]
    list_filter = ["status", "kind"]
    search_fields = ["public_id", "path", "task__name", "task__public_id", "created_by__username"]
    list_select_related = ["task", "created_by"]
    inlines = [PieceRows]
    fields = [
        ("public_id", "task"),
        ("node", "created_by"),
        ("kind", "path"),
        ("shown_status", "why"),
        ("size", "received"),
        "sha256",
        ("created_at", "touched_at"),
        "expires_at",
    ]

    @display(description=_("state"), ordering="status")
    def shown_status(self, row: FileRequest) -> str:
        return coloured(WORDS[row.status], COLOURS[row.status])

    @display(description=_("reason"))
    def why(self, row: FileRequest) -> str:
        return texts.say(row.reason_code, row.reason_params) if row.reason_code else ""
