"""The recovery loop: silent nodes, failed tasks, overdue waits, deletions (RECOV-01, -02, -06).

Owns the order of the steps and that one failing step leaves the others running (RECOV-05). What is
moved and how stands in workloads.services; when a silence is a loss, in `policy/`.
"""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings

from apps.core import hints
from apps.core.leases import Held, LeaseLost
from apps.core.models import TickRun
from apps.core.ticks import tick
from apps.fleet.models import Liveness
from apps.fleet.selectors import silent_before
from apps.recovery.policy.silence import Heard, Terms, Verdict, judge, listening_since
from apps.streams.selectors import read_log
from apps.tenants.scope import SYSTEM
from apps.workloads import services
from apps.workloads.models import Task

log = logging.getLogger("heteroflow.recovery")

NAME = "recovery.sweep"
LAST_LINES, LAST_LINES_BYTES = 20, 16 * 1024  # kept of a log where a wait ends in failure


@tick(NAME, every="RECOVERY_PERIOD_S")
def sweep(lease: Held, now: datetime) -> dict[str, Any]:
    """One sweep. The answer counts what each step did; a step that failed stands in `failed`."""
    since = _listening(now)
    steps: list[tuple[str, Callable[[], Any]]] = [("lost", lambda: _lose(lease, since, now))]
    if since <= silent_before(now):
        # Right after a start agents have not had their turn to report what went on meanwhile.
        steps.append(
            ("expired", lambda: services.expire_deadlines(lease=lease, now=now, last_lines=_last_lines))
        )
    steps += [
        ("loans_ended", lambda: services.end_due_loans(lease=lease, now=now)),
        ("woken", lambda: services.wake_waiting(lease=lease, now=now)),
        ("rebuilt", lambda: services.rebuild_failed(lease=lease, now=now)),
        ("deleted", lambda: len(services.finish_deleted(lease=lease, now=now))),
    ]
    done: dict[str, Any] = {"listening_since": since.isoformat()}
    failed: list[str] = []
    for name, step in steps:
        lease.renew(settings.TICK_LEASE_TTL_S)
        try:
            done[name] = step()
        except LeaseLost:
            raise
        except Exception:
            log.exception("the step %s of the recovery sweep failed; the others go on", name)
            failed.append(name)
    if failed:
        done["failed"] = failed
    if done.get("lost") or done.get("rebuilt"):
        hints.kick("scheduling.place")
    return done


def _listening(now: datetime) -> datetime:
    row = TickRun.objects.filter(name=NAME).first()
    if row is None:
        return now
    kept = row.detail.get("listening_since")
    return listening_since(
        row.started_at,
        datetime.fromisoformat(kept) if isinstance(kept, str) else None,
        now,
        gap_s=max(settings.NODE_SILENT_S / 2, 3 * settings.RECOVERY_PERIOD_S),
    )


def _lose(lease: Held, since: datetime, now: datetime) -> int:
    rows = Liveness.objects.filter(last_seen_at__isnull=False)
    if not rows.filter(last_seen_at__lt=silent_before(now)).exists():
        return 0
    heard = {
        node_id: Heard(node_id, last, lost)
        for node_id, last, lost in rows.values_list("node_id", "last_seen_at", "declared_lost_at")
        if last is not None
    }
    terms = Terms(silent_s=settings.NODE_SILENT_S, all_silent_s=settings.ALL_SILENT_S)
    verdict = judge(heard.values(), listening=since, now=now, terms=terms)
    _tell(verdict)
    came_back = {node_id for node_id in verdict.fresh if not _declare(lease, heard[node_id], now)}
    lost = [node_id for node_id in verdict.lost if node_id not in came_back]
    # Those lost before as well: what could not be moved last time is tried again.
    return services.lose_nodes(lease=lease, node_ids=lost, now=now) if lost else 0


def _declare(lease: Held, node: Heard, now: datetime) -> bool:
    """Note that a node is lost; False where it was heard of since it was judged."""
    with lease.transaction():
        same = Liveness.objects.filter(node=node.node_id, last_seen_at=node.last_seen_at)
        return bool(same.update(declared_lost_at=now))


def _last_lines(task: Task) -> list[str]:
    """Of the log of a task's present attempt."""
    piece = read_log(
        SYSTEM, task.public_id, attempt=task.attempt, tail_lines=LAST_LINES, max_bytes=LAST_LINES_BYTES
    )
    return piece.text.splitlines()


def _tell(verdict: Verdict) -> None:
    if verdict.held_back:
        log.error(
            "all %s nodes are silent at once: the fault may be here, so nothing is moved yet",
            len(verdict.held_back),
        )
    for node_id in verdict.fresh:
        log.warning("node row %s is silent for more than %s s: lost", node_id, settings.NODE_SILENT_S)
