"""Reads the scheduler's snapshot: a dozen statements whatever the size of the fleet, no model rows.

Owns nothing. Waiting tasks come first: where there are none, nothing else is read.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import reduce
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from agent.contract.states import Desired, RuntimeKind, State, TaskType
from apps.fleet import selectors as fleet
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Reserve, Snapshot, TaskView
from apps.tenants import redline
from apps.tenants.models import Tenant, TenantStatus
from apps.workloads.models import CardClaim, Claim, Task
from apps.workloads.policy.templates import Template, pick
from apps.workloads.selectors import choose_engine

log = logging.getLogger("heteroflow.scheduling")

# What `_task_view` reads of a task.
_COLUMNS = (
    "pk",
    "public_id",
    "version",
    "group__tenant_id",
    "group_id",
    "group__priority",
    "created_at",
    "group__task_type",
    "gpu_required",
    "gpu_type",
    "estimated_gpu_memory_mb",
    "group__gpu_memory_utilization",
    "engine",
    "group__labels",
    "group__inference_templates",
    "template_index",
    "node_refusals",
    "image",
    "command",
    "ports",
    "attempt",
    "not_before",
)


def load_snapshot(now: datetime) -> Snapshot | None:
    """All that a decision rests on; None where no task waits (one statement)."""
    waiting = Task.objects.filter(state=State.PENDING, desired=Desired.RUN, group__deleted_at__isnull=True)
    tasks = _task_views(waiting)
    return _snapshot(tasks, now) if tasks else None


def load_snapshot_of(task_ids: list[int], now: datetime) -> Snapshot:
    """The same for tasks that run, as if they waited: where else could they go (LIFE-09)?"""
    return _snapshot(_task_views(Task.objects.filter(pk__in=task_ids)), now)


def load_snapshot_with(would_be: Iterable[Task], now: datetime) -> Snapshot:
    """The same for tasks that are not written, behind all that wait before them (SVC-15)."""
    views = tuple(view_of(task) for task in would_be)
    lowest = min((view.priority for view in views), default=0)
    waiting = Task.objects.filter(
        state=State.PENDING,
        desired=Desired.RUN,
        group__deleted_at__isnull=True,
        group__priority__gte=lowest,  # who comes after them takes nothing from them
    )
    return _snapshot(_task_views(waiting) + views, now)


def view_of(task: Task) -> TaskView:
    """The view of a task that need not be written; its row id must differ from all that are."""
    return _task_view({name: reduce(getattr, name.split("__"), task) for name in _COLUMNS})


def _snapshot(tasks: tuple[TaskView, ...], now: datetime) -> Snapshot:
    holds = _holds_by_card()
    siblings = _siblings_by_node()
    return Snapshot(
        tasks=tasks,
        nodes=tuple(
            _node_view(row, now, holds, siblings.get(row.id, Counter())) for row in fleet.placement_rows()
        ),
        shared=redline.sharing(),
        suspended=dict(
            Tenant.objects.filter(status=TenantStatus.SUSPENDED).values_list("pk", "suspended_reason")
        ),
        reserve=Reserve(settings.VRAM_RESERVE_MB, settings.VRAM_RESERVE_RATIO),
        weights=settings.SCHEDULING_WEIGHTS,
    )


def _task_views(wanted: QuerySet[Task]) -> tuple[TaskView, ...]:
    rows = wanted.order_by("pk").values(*_COLUMNS)
    views = []
    for row in rows:
        try:
            views.append(_task_view(row))
        except (AttributeError, KeyError, TypeError, ValueError):  # one bad row stops no other (RECOV-05)
            log.exception("task row %s can not be read for placing; it waits, the others go on", row["pk"])
    return tuple(views)


def _task_view(row: Mapping[str, Any]) -> TaskView:
    own = Template(row["image"], row["engine"], tuple(row["command"]), row["gpu_type"])
    runs = pick(own, row["group__inference_templates"], row["template_index"])
    return TaskView(
        id=row["pk"],
        public_id=row["public_id"],
        version=row["version"],
        tenant_id=row["group__tenant_id"],
        group_id=row["group_id"],
        priority=row["group__priority"],
        created_at=row["created_at"],
        task_type=TaskType(row["group__task_type"]),
        gpu_required=row["gpu_required"],
        gpu_type=runs.gpu_type,
        memory_mb=row["estimated_gpu_memory_mb"],
        percent=row["group__gpu_memory_utilization"],
        engine=choose_engine(runs.engine, row["group__labels"], runs.image),
        has_command=bool(runs.command),
        ports=tuple((int(port["container_port"]), int(port.get("host_port") or 0)) for port in row["ports"]),
        attempt=row["attempt"],
        not_before=row["not_before"],
        refused_by=frozenset(row["node_refusals"]),
    )


def _node_view(
    row: fleet.NodeRow, now: datetime, holds: dict[int, list[CardHold]], siblings: Counter[int]
) -> NodeView:
    return NodeView(
        id=row.id,
        public_id=row.public_id,
        name=row.name,
        online=fleet.is_online(row.last_seen_at, now),
        cordoned=row.cordoned,
        runtime=RuntimeKind(row.runtime) if row.runtime in set(RuntimeKind) else None,
        engines=row.engines,
        open_to=row.open_to,
        cards=tuple(
            CardView(
                id=card.id,
                index=card.index,
                vendor=card.vendor,
                model=card.model,
                vram_total_mb=card.vram_total_mb,
                used_mb=card.vram_used_mb,
                holds=tuple(holds.get(card.id, ())),
                compute_capability=card.compute_capability or None,
                quarantined=card.quarantined_at is not None,
            )
            for card in row.cards
            if card.present
        ),
        port_first=row.port_first,
        port_last=row.port_last,
        ports=row.ports,
        reachable=row.reachable,
        siblings=siblings,
    )


def _holds_by_card() -> dict[int, list[CardHold]]:
    found: dict[int, list[CardHold]] = defaultdict(list)
    for card_id, tenant_id, percent, task_type in CardClaim.objects.filter(
        claim__released_at__isnull=True
    ).values_list("card_id", "claim__task__group__tenant_id", "percent", "claim__task__group__task_type"):
        found[card_id].append(CardHold(tenant_id, percent, task_type == TaskType.INFERENCE))
    return found


def _siblings_by_node() -> dict[int, Counter[int]]:
    found: dict[int, Counter[int]] = defaultdict(Counter)
    live = Claim.objects.filter(released_at__isnull=True)
    for node_id, group_id in live.values_list("node_id", "task__group_id"):
        found[node_id][group_id] += 1
    return found
