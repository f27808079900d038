"""Why a service is in its state, what it waits for and what to do (SVC-14), in the active language.

Owns the gathering: rows by `selectors.describe`, the nodes' words by the scheduler's own checks, the log by
streams. Never tells a viewer of a node out of sight, nor whose work it is that takes the room.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from agent.contract.states import State
from apps.core import texts
from apps.core.errors import NotFound
from apps.fleet import selectors as fleet
from apps.inference import selectors
from apps.inference.policy.explaining import Standing, find_advice, find_awaited
from apps.scheduling.policy.explain import Verdict, judge_nodes
from apps.scheduling.selectors import load_snapshot_of
from apps.streams.selectors import read_log
from apps.tenants.models import TenantStatus
from apps.tenants.scope import Viewer
from apps.workloads.models import Task, TaskGroup

NODES_SHOWN = 50  # of a task; the nearest misses
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
    nodes = _nodes_of(viewer, [task for task in rows.values() if task.state == State.PENDING], now)
    tasks = [_explain_task(viewer, rows[told["id"]], told, nodes, now) for told in service["tasks"]]
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
    nodes: Mapping[int, list[dict[str, Any]]],
    now: datetime,
) -> dict[str, Any]:
    standing = _standing_of(task)
    awaited = find_awaited(standing, now)
    words = nodes.get(task.pk, [])
    error = told["last_error"]
    # Why it failed once says little of what it waits for now, where the nodes themselves say it.
    known = [told["reason"], *([] if words else [error]), *(word["reason"] for word in words), error]
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
        "nodes": words[:NODES_SHOWN],
        "nodes_left_out": max(0, len(words) - NODES_SHOWN),
        "last_error": error,
        "log_lines": _log_lines(viewer, task, error),
        "advice": [{"code": code, "text": texts.say(code)} for code in find_advice(standing, codes)],
    }


def _standing_of(task: Task) -> Standing:
    return Standing(
        state=State(task.state),
        phase=task.phase,
        desired=task.desired,
        task_type=task.group.task_type,
        reason_code=task.reason_code,
        deadline_at=task.deadline_at,
        not_before=task.not_before,
        suspended=task.group.tenant.status == TenantStatus.SUSPENDED,
    )


def _nodes_of(viewer: Viewer, waiting: Iterable[Task], now: datetime) -> dict[int, list[dict[str, Any]]]:
    """What each node says to each waiting task, by the task's row id: nodes in the viewer's sight alone."""
    pks = [task.pk for task in waiting]
    if not pks:
        return {}
    snapshot = load_snapshot_of(pks, now)
    seen = set(fleet.nodes(viewer).values_list("pk", flat=True))
    return {
        pk: [_word_of(verdict) for verdict in verdicts if verdict.node.id in seen]
        for pk, verdicts in judge_nodes(snapshot, snapshot.tasks).items()
    }


def _word_of(verdict: Verdict) -> dict[str, Any]:
    """One node's word. The red line speaks as cards that are not free, as the checks themselves have it."""
    refused = verdict.refused
    code = "fits" if refused is None else str(refused.code)
    params = {} if refused is None else dict(refused.params)
    here = f"here_{code}"
    text = texts.say(here, params) if here in texts.TEXTS else texts.say(code, {"nodes": 1, **params})
    return {
        "node": verdict.node.name,
        "fits": refused is None,
        "reason": {"code": code, "params": params, "text": text},
    }


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
