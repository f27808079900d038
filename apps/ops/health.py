"""Alive and ready (OPS-04): alive answers as long as the process does, ready asks what it needs.

Parts that live in this process register a question by `watch`; the database is always asked.
"""

import logging
from collections.abc import Callable

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from apps.core.scopes import public

log = logging.getLogger("heteroflow.ops")
_questions: dict[str, Callable[[], bool]] = {}


def watch(name: str, is_ready: Callable[[], bool]) -> None:
    """Make `is_ready` part of the readiness answer."""
    _questions[name] = is_ready


def database_answers() -> bool:
    """Whether a trivial query succeeds now."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        log.warning("readiness: the database does not answer: %s", error)
        return False
    return True


@public
@never_cache
@require_safe
def alive(request: HttpRequest) -> JsonResponse:
    """200 while the process answers at all."""
    return JsonResponse({"status": "alive"})


@public
@never_cache
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """200 when every part is ready, else 503; the answer names each part."""
    parts = {"database": database_answers(), **{name: ask() for name, ask in _questions.items()}}
    whole = all(parts.values())
    return JsonResponse(
        {"status": "ready" if whole else "not ready", "parts": parts}, status=200 if whole else 503
    )
