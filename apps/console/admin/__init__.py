"""The console's admin classes, one module per area: lists, details and actions that call services.

Owns presentation only. No rule stands here; state rows are read-only.
"""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from apps.console.admin import (
    alerts,
    audit,
    cards,
    catalog,
    external,
    files,
    groups,
    keys,
    ledger,
    loans,
    loops,
    machines,
    people,
    quotas,
    routes,
    sessions,
    tasks,
    tokens,
    usage,
    users,
)

admin.site.index_title = _("Overview")

__all__ = [
    "alerts",
    "audit",
    "cards",
    "catalog",
    "external",
    "files",
    "groups",
    "keys",
    "ledger",
    "loans",
    "loops",
    "machines",
    "people",
    "quotas",
    "routes",
    "sessions",
    "tasks",
    "tokens",
    "usage",
    "users",
]
