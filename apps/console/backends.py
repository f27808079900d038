"""The backends as the gateways see them now: calls, failures, circuit, temperature, engine's load (GW-08).

Reads only, a fixed number of statements whatever the number of backends. What nobody told is no 0.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.paginator import Paginator
from django.urls import reverse

from agent.contract.states import State
from apps.core import texts
from apps.gateway.destinations import live_sources, told_of
from apps.routing.heat import hot_replicas
from apps.routing.load import BackendWord, Source, words_of
from apps.routing.models import ExternalEngine
from apps.workloads.models import Task

ON_A_PAGE = 50
_CIRCUITS = ("open", "passed_over", "half_open", "closed")  # the worst first
_COLOURS = {"open": "danger", "passed_over": "warning", "half_open": "info", "closed": "success"}


def build_backends(page: str | None, now: datetime) -> dict[str, Any]:
    """One page of backends: replicas that run or have calls, and external engines with a route."""
    sources = live_sources(now)
    called = {task_id for source in sources for task_id in source.load.in_flight}
    wanted = Task.objects.filter(state=State.RUNNING) | Task.objects.filter(public_id__in=called)
    tasks = wanted.select_related("group__tenant", "node").filter(group__routes__isnull=False).distinct()
    shown = Paginator(tasks.order_by("group__name", "name", "pk"), ON_A_PAGE).get_page(page)
    heat = hot_replicas(0, now)
    rows = [_replica(task, heat, sources) for task in shown.object_list]
    if shown.number == shown.paginator.num_pages:
        engines = ExternalEngine.objects.defer("api_key").filter(routes__isnull=False).distinct()
        rows += [_external(engine, sources) for engine in engines]
    return {
        "page": shown,
        "rows": rows,
        "gateways": len(sources),
        "calls": sum(sum(source.load.in_flight.values()) for source in sources),
        "at": now,
        "poll_s": settings.PORTAL_POLL_S,
    }


def _replica(task: Task, heat: dict[str, int], sources: list[Source]) -> dict[str, Any]:
    return {
        "name": task.name,
        "link": reverse("admin:workloads_task_change", args=[task.pk]),
        "service": task.group.name,
        "tenant": task.group.tenant.slug,
        "node": task.node.name if task.node else "",
        "temperature_c": heat.get(task.public_id),
        **_seen(task.public_id, sources),
    }


def _external(engine: ExternalEngine, sources: list[Source]) -> dict[str, Any]:
    return {
        "name": engine.name,
        "link": reverse("admin:routing_externalengine_change", args=[engine.pk]),
        "service": "",
        "tenant": "",
        "node": engine.url,
        "temperature_c": None,
        **_seen(engine.public_id, sources),
    }


def _seen(task_id: str, sources: list[Source]) -> dict[str, Any]:
    words = words_of(sources, task_id)
    states = Counter(word.state for word in words)
    states["closed"] += len(sources) - len(words)  # who says nothing of it holds nothing against it
    told = told_of(task_id, sources)
    return {
        **told,
        "in_flight": sum(source.load.in_flight.get(task_id, 0) for source in sources),
        "circuits": [
            {"word": texts.say(f"circuit_{state}"), "colour": _COLOURS[state], "gateways": states[state]}
            for state in _CIRCUITS
            if states[state]
        ],
        "last_failure": texts.say(f"failure_{told['last_failure']}") if told["last_failure"] else "",
        "kv_percent": None if told["kv_use"] is None else round(100 * told["kv_use"]),
        "told_at": _when(words),
    }


def _when(words: list[BackendWord]) -> datetime | None:
    times = [word.told_at for word in words if word.told_at is not None]
    return datetime.fromtimestamp(max(times), UTC) if times else None
