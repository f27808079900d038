"""Routes that have lost every backend, as findings for alerts (OPS-09, GW-08): none is ready any more, or no
gateway reaches any.

Owns what counts as a loss. A service that starts for the first time, sleeps, wakes or was stopped has lost
nothing: somebody wanted it so. Writes no row, asks no engine.
"""

from collections import defaultdict
from datetime import datetime

from django.conf import settings
from django.db.models import Count, Q, QuerySet

from agent.contract.states import Desired, Phase, State
from apps.alerts.services import Found
from apps.core.errors import Value
from apps.gateway.destinations import live_sources
from apps.gateway.plane.core.circuit import WORDS, Verdict
from apps.routing.load import Source, words_of
from apps.routing.models import ModelRoute
from apps.workloads.models import Task

CODE = "route_unserved"
_SERVES = Q(group__tasks__state=State.RUNNING, group__tasks__phase=Phase.READY)
_WANTED = Q(group__tasks__desired=Desired.RUN)
_LOST = _WANTED & (
    Q(group__tasks__state=State.FAILED)
    | Q(group__tasks__attempt__gt=1, group__tasks__state__in=(State.PENDING, State.SCHEDULING))
    | Q(group__tasks__state=State.RUNNING) & ~Q(group__tasks__phase=Phase.READY)
)


def read_backends(now: datetime, since: datetime) -> list[Found]:
    """Active routes whose every backend is gone, or is reached by no gateway that was heard lately."""
    rows = ModelRoute.objects.filter(active=True, group__deleted_at__isnull=True).select_related("tenant")
    counted = rows.filter(group__isnull=False).annotate(
        serving=Count("group__tasks", filter=_SERVES),
        lost=Count("group__tasks", filter=_LOST),
        wanted=Count("group__tasks", filter=_WANTED),
    )
    gone = [_found(route, route.wanted, "gone") for route in counted.filter(serving=0, lost__gt=0)]
    return gone + _unreachable(rows, live_sources(now))


def _unreachable(rows: QuerySet[ModelRoute], sources: list[Source]) -> list[Found]:
    """By circuits: those whose every backend is open for their tenant in each process that says anything of
    it."""
    suspect = {
        task_id
        for source in sources
        for task_id, word in source.load.backends.items()
        if word.state == WORDS[Verdict.OPEN]
    }
    if not suspect:
        return []
    replicas: dict[int, set[str]] = defaultdict(set)
    serving = Task.objects.filter(state=State.RUNNING, phase=Phase.READY)
    for group, task_id in serving.filter(
        group__in=Task.objects.filter(public_id__in=suspect).values("group")
    ).values_list("group_id", "public_id"):
        replicas[group].add(task_id)
    led = Q(group__in=list(replicas)) | Q(external__public_id__in=suspect)
    found = []
    for route in rows.filter(led).select_related("external").defer("external__api_key"):
        backends = {route.external.public_id} if route.external else replicas[route.group_id or 0]
        if all(_is_open(task_id, route.tenant.public_id, sources) for task_id in backends):
            found.append(_found(route, len(backends), "unreachable"))
    return found


def _is_open(task_id: str, tenant_id: str, sources: list[Source]) -> bool:
    words = words_of(sources, task_id, tenant_id)
    return bool(words) and all(word.state == WORDS[Verdict.OPEN] for word in words)


def _found(route: ModelRoute, backends: int, reason: str) -> Found:
    params: dict[str, Value] = {
        "route": route.public_id,
        "model": route.model_name,
        "tenant": route.tenant.slug,
        "backends": backends,
        "reason": reason,
        "after_s": settings.ALERT_ROUTE_UNSERVED_S,
    }
    return Found(CODE, route.public_id, params)
