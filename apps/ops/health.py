"""Alive and ready (OPS-04): alive answers as long as the process does, ready asks what it needs.

Parts that live in this process register a question by `watch`; the database is always asked.
"""

import logging
from collections.abc import Callable

from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from apps.core import ticks
from apps.core.clock import utc_now
from apps.core.models import TickRun
from apps.core.scopes import public

log = logging.getLogger("heteroflow.ops")
BEGAN = utc_now()  # from when on this process awaits loops that never ran
_questions: dict[str, Callable[[], bool]] = {}
_asides: dict[str, Callable[[], bool]] = {}


def watch(name: str, is_ready: Callable[[], bool]) -> None:
    """Make `is_ready` part of the readiness answer."""
    _questions[name] = is_ready


def offer(name: str, is_so: Callable[[], bool]) -> None:
    """Answer a question of its own at /readyz/NAME that is no part of being ready."""
    _asides[name] = is_so


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


@public
@never_cache
@require_safe
def part_ready(request: HttpRequest, part: str) -> JsonResponse:
    """One part alone: the gateway serves on while the database is away, and must not be taken out of
    service then. 404 for a part that this process does not have."""
    questions = {"database": database_answers, **_questions, **_asides}
    if part not in questions:
        return JsonResponse({"status": "no such part", "parts": {}}, status=404)
    yes = questions[part]()
    return JsonResponse(
        {"status": "ready" if yes else "not ready", "parts": {part: yes}}, status=200 if yes else 503
    )


@public
@never_cache
@require_safe
def loops(request: HttpRequest) -> JsonResponse:
    """Whether each loop ran lately, anywhere. Apart from readiness on purpose: a process that can serve
    stays in service whoever runs the loops."""
    try:
        ended = dict(TickRun.objects.values_list("name", "finished_at"))
    except DatabaseError as error:
        log.warning("readiness of loops: the database does not answer: %s", error)
        return JsonResponse({"status": "unknown", "loops": {}}, status=503)
    now = utc_now()
    late = [name for name, loop in ticks.REGISTRY.items() if loop.is_late(ended.get(name) or BEGAN, now)]
    ages: dict[str, float | None] = {}
    for name in ticks.REGISTRY:
        at = ended.get(name)
        ages[name] = None if at is None else (now - at).total_seconds()
    return JsonResponse(
        {"status": "late" if late else "running", "late": late, "last_run_s": ages},
        status=503 if late else 200,
    )
