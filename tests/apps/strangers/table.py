"""The URL table as the walk sees it: every address of ours, its view, its scope, its ids.

A new address is walked by itself. An id in a new place needs a line in KINDS, and fails until it has one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from apps.core.scopes import scope_of

# What an id stands for, by the part of the address before it.
KINDS = {
    "api-keys": "key",
    "endpoints": "endpoint",
    "external-engines": "external",
    "file-requests": "file",
    "invitations": "link",
    "keys": "key",
    "members": "user",
    "model-routes": "route",
    "nodes": "node",
    "services": "group",
    "sessions": "session",
    "task-groups": "group",
    "tasks": "task",
    "tenants": "tenant",
    "users": "user",
}
# Not ours, or shows no rows: the console is gated by staff (walked apart), the language switch and the
# schema are the frameworks' own.
EXEMPT = ("admin/", "i18n/", "api/schema")

_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")


@dataclass(frozen=True)
class Address:
    """One address. `template` is like `api/v1/tasks/<str:task_id>/stop`."""

    template: str
    view: Any
    name: str

    def __str__(self) -> str:
        return self.template or "/"

    @property
    def scope(self) -> str | None:
        return scope_of(self.view)

    @property
    def kinds(self) -> list[str]:
        """What each id of the address stands for, in order. Raises KeyError for an unknown place."""
        parts = self.template.split("/")
        return [KINDS[parts[i - 1]] for i, part in enumerate(parts) if _PARAMETER.fullmatch(part)]

    @property
    def is_api(self) -> bool:
        return self.template.startswith("api/")

    def fill(self, ids: list[str]) -> str:
        """The path with its ids put in."""
        left = iter(ids)
        return "/" + _PARAMETER.sub(lambda _: next(left), self.template)


def all_addresses(patterns: Any = None, prefix: str = "") -> Iterator[Address]:
    """Everything in the URL table, the console's addresses included."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        here = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from all_addresses(pattern.url_patterns, here)
        elif isinstance(pattern, URLPattern):
            yield Address(here, pattern.callback, pattern.name or "")


def our_addresses() -> list[Address]:
    """The addresses that must declare a scope."""
    return [a for a in all_addresses() if not a.template.startswith(EXEMPT)]


def console_addresses() -> list[Address]:
    return [a for a in all_addresses() if a.template.startswith("admin/")]
