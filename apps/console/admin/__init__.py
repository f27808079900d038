"""The console's admin classes, one module per area: lists, details and actions that call services.

Owns presentation only. No rule stands here; state rows are read-only.
"""

from apps.console.admin import (
    catalog,
    groups,
    keys,
    ledger,
    loops,
    machines,
    people,
    quotas,
    routes,
    tasks,
    tokens,
    usage,
    users,
)

__all__ = [
    "catalog",
    "groups",
    "keys",
    "ledger",
    "loops",
    "machines",
    "people",
    "quotas",
    "routes",
    "tasks",
    "tokens",
    "usage",
    "users",
]
