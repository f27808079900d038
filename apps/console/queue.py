"""What waits for a place, in the order in which the scheduler looks at it (SCHED-02, SCHED-10).

Reads only; a fixed number of statements whatever the length. Who may see it is decided by the page.
"""

from typing import Any

from django.core.paginator import Paginator
from django.urls import reverse

from apps.console.admin.base import further_refusals
from apps.core import texts
from apps.core.texts import say_size
from apps.workloads.models import Task
from apps.workloads.selectors import find_places_in_line, waiting_in_order

ON_A_PAGE = 50
ANY_CARD = "-"  # stands for tasks that name no type


def build_queue(gpu_type: str, page: str | None) -> dict[str, Any]:
    """One page of the queue; `gpu_type` "" = all of it, `ANY_CARD` = tasks that name none."""
    line = waiting_in_order()
    types = sorted(set(line.order_by().values_list("gpu_type", flat=True).distinct()))
    wanted = line.filter(gpu_type="" if gpu_type == ANY_CARD else gpu_type) if gpu_type else line
    rows = wanted.select_related("group__tenant", "reservation__node")
    shown = Paginator(rows, ON_A_PAGE).get_page(page)
    tasks = list(shown.object_list)
    places = find_places_in_line(tasks)
    return {
        "page": shown,
        "gpu_type": gpu_type,
        "types": [(name or ANY_CARD, name) for name in types],
        "tasks": [_row(task, places[task.pk].position) for task in tasks if task.pk in places],
    }


def _row(task: Task, position: int) -> dict[str, Any]:
    kept = getattr(task, "reservation", None)
    return {
        "position": position,
        "name": task.name,
        "link": reverse("admin:workloads_task_change", args=[task.pk]),
        "service": task.group.name,
        "service_link": reverse("admin:workloads_taskgroup_change", args=[task.group_id]),
        "tenant": task.group.tenant.slug,
        "priority": task.group.priority,
        "since": task.state_since,
        "not_before": task.not_before,
        "cards": task.gpu_required,
        "gpu_type": task.gpu_type,
        "percent": task.group.gpu_memory_utilization if task.gpu_required == 1 else None,
        "memory": say_size(task.estimated_gpu_memory_mb) if task.estimated_gpu_memory_mb else "",
        "why": texts.say(task.reason_code, task.reason_params) if task.reason_code else "",
        "refusals": further_refusals(task),
        "kept": {"node": kept.node.name, "until": kept.until} if kept else None,
    }
