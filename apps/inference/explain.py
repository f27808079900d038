"""Why a service is in its state, what it waits for and what to do (SVC-14), in the active language.

Owns the gathering: rows by `selectors.describe`, the nodes' words by the scheduler's own checks, the log by
streams. Never tells a viewer of a node out of sight, nor whose work it is that takes the room.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db.models import Q

from agent.contract.states import State
from apps.core import texts
from apps.core.errors import NotFound
from apps.inference import selectors
from apps.inference.hearing import NODES_SHOWN, Heard, hear_nodes
from apps.inference.policy.explaining import Standing, find_advice, find_awaited
from apps.scheduling.selectors import load_snapshot_of
from apps.streams.selectors import read_log
from apps.tenants.models import TenantStatus
from apps.tenants.scope import Viewer
from apps.workloads import selectors as work
from apps.workloads.models import Loan, Reservation, Task, TaskGroup

LOG_LINES = 20
LOG_BYTES = 16 * 1024
# Whoever starts or has failed says in its log what goes on.
_WITH_LOG = frozenset({State.SCHEDULING, State.WAKING, State.FAILED})


def explain(
    viewer: Viewer, group: TaskGroup, *, now: datetime, service: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One service with all its tasks. `service` is what `selectors.describe` just said of it, if it did."""
    if service is None:
        service = selectors.describe(viewer, group, now=now)
    rows = {task.public_id: task for task in group.tasks.all()}
    waiting = [task for task in rows.values() if task.state == State.PENDING]
    heard = hear_nodes(viewer, load_snapshot_of([task.pk for task in waiting], now)) if waiting else {}
    line = work.find_places_in_line(waiting)
    kept, loans = _kept(waiting, now), _loans(viewer, group)
    tasks = []
    for told in service["tasks"]:
        row = rows[told["id"]]
        standing = _standing_of(row, kept.get(row.pk))
        task = _explain_task(viewer, row, told, heard.get(row.pk, Heard()), standing, now)
        place = line.get(row.pk)
        tasks.append(
            task
            | {
                "line": None if place is None else {"position": place.position, "waiting": place.waiting},
                "gave_way_at": row.preempted_at if row.state == State.PENDING else None,
                "kept_until": kept.get(row.pk),
                "loans": loans.get(row.pk, []),
            }
        )
    speaking = next((task for task in tasks if task["status"] == service["status"]), None)
    # A replica that was scaled away rests on purpose: it is no advice to the service that serves on.
    telling = [task for task in tasks if task["status"] != State.STOPPED] or tasks
    advice = list({tip["code"]: tip for task in telling for tip in task["advice"]}.values())
    return {
        "id": service["id"],
        "name": service["name"],
        "status": service["status"],
        "status_since": service["status_since"],
        "reason": service["reason"],
        "awaited": speaking["awaited"] if speaking else None,
        "warnings": service["warnings"],
        "advice": advice,
        "tasks": tasks,
    }


def _explain_task(
    viewer: Viewer,
    task: Task,
    told: Mapping[str, Any],
    heard: Heard,
    standing: Standing,
    now: datetime,
) -> dict[str, Any]:
    awaited = find_awaited(standing, now)
    words, error = heard.words, told["last_error"]
    # Why it failed once says little of what it waits for now, where the nodes themselves say it.
    known = [told["reason"], *([] if words else [error]), *told["refusals"]]
    known += [*(word["reason"] for word in words), error]
    codes = [reason["code"] for reason in known if reason]
    if task.state == State.RUNNING and not awaited:
        codes = []
    return {
        "id": told["id"],
        "name": told["name"],
        "role": told["role"],
        "status": told["status"],
        "status_since": told["status_since"],
        "phase": told["phase"],
        "attempt": told["attempt"],
        "rebuilds": told["rebuilds"],
        "node": told["node"],
        "reason": told["reason"],
        "awaited": None
        if awaited is None
        else {"code": awaited.code, "text": texts.say(awaited.code), "until": awaited.until},
        "summary": heard.summary,
        "nodes": words[:NODES_SHOWN],
        "nodes_left_out": max(0, len(words) - NODES_SHOWN),
        "last_error": error,
        "log_lines": _log_lines(viewer, task, error),
        "advice": [{"code": code, "text": texts.say(code)} for code in find_advice(standing, codes)],
    }


def _standing_of(task: Task, kept_until: datetime | None) -> Standing:
    return Standing(
        state=State(task.state),
        phase=task.phase,
        desired=task.desired,
        task_type=task.group.task_type,
        reason_code=task.reason_code,
        deadline_at=task.deadline_at,
        not_before=task.not_before,
        suspended=task.group.tenant.status == TenantStatus.SUSPENDED,
        kept_until=kept_until,
    )


def _kept(waiting: Iterable[Task], now: datetime) -> dict[int, datetime]:
    """Until when room is kept for each that has some (SCHED-11)."""
    rows = Reservation.objects.filter(task__in=[task.pk for task in waiting], until__gt=now)
    return dict(rows.values_list("task_id", "until"))


def _loans(viewer: Viewer, group: TaskGroup) -> dict[int, list[dict[str, Any]]]:
    """Open loans of cards that its tasks have borrowed or lent, by the task's row id. The other side is named
    to those who may see it (SVC-14)."""
    mine = Q(borrower__task__group=group) | Q(card__claim__task__group=group)
    rows = Loan.objects.filter(mine, ended_at__isnull=True).order_by("until", "pk")
    found: dict[int, list[dict[str, Any]]] = {}
    for loan in rows.select_related("borrower__task__group", "card__claim__task__group", "card__card"):
        lender, borrower = loan.card.claim.task, loan.borrower.task
        for kind, task, other in (("borrowed", borrower, lender), ("lent", lender, borrower)):
            if task.group_id != group.pk:
                continue
            known = viewer.is_operator or other.group.tenant_id == group.tenant_id
            said = {
                "kind": kind,
                "card": loan.card.card.index,
                "other": other.name if known else None,
                "until": loan.until,
            }
            found.setdefault(task.pk, []).append(said)
    return found


def _log_lines(viewer: Viewer, task: Task, error: Mapping[str, Any] | None) -> list[str]:
    """The last lines of its log, or those that its last error came with."""
    kept = [str(line) for line in (error or {}).get("log_lines") or []]
    if task.state not in _WITH_LOG or (task.state == State.FAILED and kept):
        return kept
    try:
        piece = read_log(viewer, task.public_id, tail_lines=LOG_LINES, max_bytes=LOG_BYTES)
    except NotFound:  # deleted while we looked
        return kept
    return piece.text.splitlines() or kept
