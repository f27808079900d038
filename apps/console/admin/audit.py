"""The audit trail (TEN-08): every act of everybody, to read, search and filter; nothing to change."""

import json
from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin
from apps.core import texts
from apps.core.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnlyAdmin):
    """Names are as they were at the time."""

    list_display = ["at", "actor", "did", "object_kind", "object_name", "tenant", "address", "request_id"]
    list_filter = ["verb", "object_kind", "by_operator"]
    search_fields = ["actor", "actor_id", "object_id", "object_name", "tenant", "address", "request_id"]
    date_hierarchy = "at"
    fields = [
        ("at", "did"),
        ("actor", "by_operator"),
        ("actor_id", "address"),
        ("object_kind", "object_name"),
        ("object_id", "tenant"),
        "request_id",
        "shown_before",
        "shown_after",
    ]
    actions = None

    @display(description=_("act"), ordering="verb")
    def did(self, row: AuditEntry) -> str:
        return texts.say(f"did_{row.verb}")

    @display(description=_("before"))
    def shown_before(self, row: AuditEntry) -> SafeString | str:
        return _as_lines(row.before)

    @display(description=_("after"))
    def shown_after(self, row: AuditEntry) -> SafeString | str:
        return _as_lines(row.after)


def _as_lines(values: dict[str, Any]) -> SafeString | str:
    if not values:
        return "-"
    shown = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return format_html("<pre class='whitespace-pre-wrap'>{}</pre>", shown)
