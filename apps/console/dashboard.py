"""What the console's first page shows: nodes, services, the queue with reasons, the last hour, the loops.

Reads only; a fixed number of statements whatever the size. Who may see it is decided by the admin site
and, once more, here.
"""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, Sum
from django.http import HttpRequest
from django.urls import reverse

from agent.contract.states import State
from apps.console.admin.base import STATE_COLOURS, further_refusals, is_operator
from apps.core import texts
from apps.core.clock import utc_now
from apps.core.models import TickRun
from apps.core.ticks import REGISTRY
from apps.fleet.models import Card, Node
from apps.fleet.selectors import is_online
from apps.usage.models import UsageRecord
from apps.usage.record import Ending
from apps.workloads.models import Task, TaskGroup

QUEUE_SHOWN = 10


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """unfold's hook; nothing is added for staff who are not operators."""
    if is_operator(request):
        context["overview"] = build_overview(utc_now())
    return context


def only_operators(request: HttpRequest) -> bool:
    """Whether the sidebar shows an entry."""
    return is_operator(request)


def build_overview(now: datetime) -> dict[str, Any]:
    """All figures of the page. `last_hour` counts by when a request began."""
    return {
        "nodes": _nodes(now),
        "states": _states(),
        "queue": _queue(),
        "last_hour": _last_hour(now),
        "loops": _loops(now),
    }


def _nodes(now: datetime) -> dict[str, Any]:
    rows = list(Node.objects.values_list("liveness__last_seen_at", "cordoned"))
    return {
        "total": len(rows),
        "online": sum(is_online(seen, now) for seen, _ in rows),
        "cordoned": sum(cordoned for _, cordoned in rows),
        "cards": Card.objects.filter(present=True).count(),
        "link": reverse("admin:fleet_node_changelist"),
    }


def _states() -> list[dict[str, Any]]:
    groups = TaskGroup.objects.filter(deleted_at__isnull=True).order_by()
    counts = Counter(dict(groups.values_list("state").annotate(n=Count("pk"))))
    link = reverse("admin:workloads_taskgroup_changelist")
    return [
        {
            "word": texts.say(f"state_{state}"),
            "colour": STATE_COLOURS.get(state, ""),
            "count": counts[state],
            "link": f"{link}?state__exact={state}",
        }
        for state in State
        if counts[state]
    ]


def _queue() -> dict[str, Any]:
    waiting = Task.objects.filter(state=State.PENDING, group__deleted_at__isnull=True)
    rows = waiting.select_related("group__tenant").order_by("-group__priority", "created_at", "pk")
    return {
        "length": waiting.count(),
        "tasks": [
            {
                "name": task.name,
                "tenant": task.group.tenant.slug,
                "since": task.state_since,
                "why": texts.say(task.reason_code, task.reason_params) if task.reason_code else "",
                "refusals": further_refusals(task),
                "link": reverse("admin:workloads_task_change", args=[task.pk]),
            }
            for task in rows[:QUEUE_SHOWN]
        ],
    }


def _last_hour(now: datetime) -> dict[str, Any]:
    recent = UsageRecord.objects.filter(started_at__gt=now - timedelta(hours=1), started_at__lte=now)
    return recent.aggregate(
        requests=Count("pk"),
        failed=Count("pk", filter=~Q(ending=Ending.COMPLETED)),
        tokens_in=Sum("prompt_tokens", default=0),
        tokens_out=Sum("completion_tokens", default=0),
    )


def _loops(now: datetime) -> list[dict[str, Any]]:
    """Every registered loop, also one that never ran yet."""
    runs = {run.name: run for run in TickRun.objects.all()}
    shown = []
    for name in sorted(REGISTRY.keys() | runs.keys()):
        run = runs.get(name)
        ended = run.finished_at if run else None
        age_s = (now - ended).total_seconds() if ended else None
        late = name in REGISTRY and ended is not None and REGISTRY[name].is_late(ended, now)
        shown.append(
            {
                "name": name,
                "outcome": run.outcome if run else "",
                "ended": ended,
                "age_s": None if age_s is None else max(int(age_s), 0),
                "duration_ms": run.duration_ms if run else None,
                "failures": run.failures_in_a_row if run else 0,
                "late": late,
            }
        )
    return shown
