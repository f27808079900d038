"""The recovery loop: lost nodes and cards, failed tasks, overdue waits, deletions (RECOV-01 to -06).

Owns the order of the steps and that one failing step leaves the others running (RECOV-05). What is
moved and how stands in workloads.services; when a silence is a loss, in `policy/`.
"""

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from apps.core import hints
from apps.core.clock import listening_since
from apps.core.leases import Held, LeaseLost
from apps.core.models import TickRun
from apps.core.ticks import tick
from apps.fleet.models import Card, Liveness
from apps.fleet.selectors import silent_before
from apps.recovery.policy.silence import Heard, Verdict, judge
from apps.streams.selectors import read_log
from apps.tenants.scope import SYSTEM
from apps.usage.cardtime import settle
from apps.workloads import services
from apps.workloads.models import Claim, Task

log = logging.getLogger("heteroflow.recovery")

NAME = "recovery.sweep"
LAST_LINES, LAST_LINES_BYTES = 20, 16 * 1024  # kept of a log where a wait ends in failure


@tick(NAME, every="RECOVERY_PERIOD_S")
def sweep(lease: Held, now: datetime) -> dict[str, Any]:
    """One sweep. The answer counts what each step did; a step that failed stands in `failed`."""
    past = TickRun.objects.filter(name=NAME).first()
    since = _listening(past, now)
    missing = _missing_cards(past, now)
    done: dict[str, Any] = {"listening_since": since.isoformat()}
    if missing:
        done["missing_cards"] = {str(card): at.isoformat() for card, at in missing.items()}
    cards = [card for card, at in missing.items() if at <= now - timedelta(seconds=settings.CARD_LOST_S)]
    nodes: list[int] = []
    steps: list[tuple[str, Callable[[], Any]]] = [
        ("lost", lambda: _lose(lease, since, nodes, now)),
        ("lost_cards", lambda: services.lose_cards(lease=lease, card_ids=cards, now=now)),
        ("held_back", lambda: services.note_held_back(node_ids=nodes, card_ids=cards)),
    ]
    if since <= silent_before(now):
        # Right after a start agents have not had their turn to report what went on meanwhile.
        steps.append(
            ("expired", lambda: services.expire_deadlines(lease=lease, now=now, last_lines=_last_lines))
        )
    steps += [
        ("loans_ended", lambda: services.end_due_loans(lease=lease, now=now)),
        ("kept_room", lambda: services.drop_kept_room(lease=lease, now=now)),
        ("woken", lambda: services.wake_waiting(lease=lease, now=now)),
        ("rebuilt", lambda: services.rebuild_failed(lease=lease, now=now)),
        ("stages", lambda: services.keep_pipelines_together(lease=lease, now=now)),
        ("deleted", lambda: _finish_deleted(lease, now)),
    ]
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
    if held_back := done.get("held_back"):
        log.error("%s tasks of lost nodes or cards wait: too many are lost at once", held_back)
    if done.get("lost") or done.get("rebuilt"):
        hints.kick("scheduling.place")
    return done


def _finish_deleted(lease: Held, now: datetime) -> int:
    def count_time(claims: QuerySet[Claim]) -> None:
        settle(claims, now=now)  # they go with their groups

    return len(services.finish_deleted(lease=lease, now=now, before=count_time))


def _listening(past: TickRun | None, now: datetime) -> datetime:
    if past is None:
        return now
    kept = past.detail.get("listening_since")
    return listening_since(
        past.started_at,
        datetime.fromisoformat(kept) if isinstance(kept, str) else None,
        now,
        gap_s=max(settings.NODE_SILENT_S / 2, 3 * settings.RECOVERY_PERIOD_S),
    )


def _missing_cards(past: TickRun | None, now: datetime) -> dict[int, datetime]:
    """Cards that something holds and that their node, which is heard, no longer reports: since when."""
    known = past.detail.get("missing_cards") if past is not None else None
    since = known if isinstance(known, dict) else {}
    gone = Card.objects.filter(
        present=False,
        node__liveness__last_seen_at__gte=silent_before(now),
        claims__claim__released_at__isnull=True,
    )
    return {
        pk: datetime.fromisoformat(since[str(pk)]) if str(pk) in since else now
        for pk in gone.order_by("pk").values_list("pk", flat=True).distinct()
    }


def _lose(lease: Held, since: datetime, nodes: list[int], now: datetime) -> int:
    """Move tasks off lost nodes, which `nodes` then holds; answers how many."""
    nodes += _lost_nodes(lease, since, now)
    return services.lose_nodes(lease=lease, node_ids=nodes, now=now) if nodes else 0


def _lost_nodes(lease: Held, since: datetime, now: datetime) -> list[int]:
    """Those lost before as well: what could not be moved last time is tried again."""
    rows = Liveness.objects.filter(last_seen_at__isnull=False)
    if not rows.filter(last_seen_at__lt=silent_before(now)).exists():
        return []
    heard = {
        node_id: Heard(node_id, last, lost)
        for node_id, last, lost in rows.values_list("node_id", "last_seen_at", "declared_lost_at")
        if last is not None
    }
    verdict = judge(heard.values(), listening=since, now=now, silent_s=settings.NODE_SILENT_S)
    _tell(verdict)
    came_back = {node_id for node_id in verdict.fresh if not _declare(lease, heard[node_id], now)}
    return [node_id for node_id in verdict.lost if node_id not in came_back]


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
            "all %s nodes are silent at once: the fault may be here, so nothing is moved while it lasts",
            len(verdict.held_back),
        )
    for node_id in verdict.fresh:
        log.warning("node row %s is silent for more than %s s: lost", node_id, settings.NODE_SILENT_S)
