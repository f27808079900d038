"""What is wrong now and lasts, as findings for alerts (OPS-09): machines, loops, queue, usage, routes.

Owns when a reading is worth an alert. One function a topic, each with the codes that it judges; a topic that
can't be read judges nothing. Writes no row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from agent.contract.states import State
from apps.alerts.services import Found
from apps.core.errors import Value
from apps.core.models import TickRun
from apps.core.ticks import REGISTRY
from apps.fleet.models import Card, DoorState, Duty, Liveness
from apps.fleet.selectors import is_online, silent_before
from apps.ops import backends
from apps.recovery.loop import NAME as SWEEP
from apps.recovery.policy.silence import Heard, judge
from apps.usage.models import UsageHost
from apps.workloads.models import Task


@dataclass(frozen=True)
class Topic:
    """`read(now, since)`: what holds now. `since`: from when on this loop has been looking without a gap;
    what is silent only because nobody listened is nobody's fault. `holds`: the setting that says for how many
    seconds a finding must have held without a gap to be worth an alert; "" = it is at once."""

    codes: tuple[str, ...]
    read: Callable[[datetime, datetime], list[Found]]
    holds: str = ""


def read_nodes(now: datetime, since: datetime) -> list[Found]:
    """Lost nodes; closed doors of nodes that are heard; all silent at once, the fault being here."""
    rows = list(Liveness.objects.filter(last_seen_at__isnull=False).select_related("node"))
    found = []
    for row in rows:
        node = row.node
        if node.duty == Duty.MAINTENANCE:  # it may be off, and somebody knows (LIFE-09)
            continue
        if row.declared_lost_at is not None:
            params = {"node": node.name, "silent_s": settings.NODE_SILENT_S}
            found.append(Found("node_lost", node.public_id, params))
        elif row.door_state == DoorState.CLOSED and is_online(row.last_seen_at, now):
            params = {"node": node.name, "reason": row.door_reason}
            found.append(Found("node_door_closed", node.public_id, params))
    heard = [Heard(row.node_id, row.last_seen_at, row.declared_lost_at) for row in rows if row.last_seen_at]
    if spared := judge(heard, listening=since, now=now, silent_s=settings.NODE_SILENT_S).held_back:
        found.append(Found("all_nodes_silent", "", {"nodes": len(spared)}))
    return found


def read_cards(now: datetime, since: datetime) -> list[Found]:
    """Cards that left the heartbeat, and cards in quarantine, of nodes that are heard: a lost node tells
    nothing of its cards."""
    heard = Card.objects.filter(node__liveness__last_seen_at__gte=silent_before(now))
    heard = heard.exclude(node__duty=Duty.MAINTENANCE).select_related("node")
    found = []
    for card in heard.filter(Q(present=False) | Q(quarantined_at__isnull=False)):
        code = "card_lost"
        params: dict[str, Value] = {"node": card.node.name, "card": card.uuid}
        if card.present:
            first = card.held_by[0] if card.held_by else {}
            code = "card_held"
            params |= {"pid": first.get("pid"), "used_mb": first.get("used_mb")}
        found.append(Found(code, f"{card.node.public_id}/{card.uuid}"[:150], params))
    return found


def read_evictions(now: datetime, since: datetime) -> list[Found]:
    """Tasks of lost nodes and cards that wait, since so many are lost at once."""
    run = TickRun.objects.filter(name=SWEEP).first()
    waiting = run.detail.get("held_back") if run is not None else None
    if not isinstance(waiting, int) or not waiting:
        return []
    return [Found("evictions_held_back", "", {"tasks": waiting, "max": settings.EVICTIONS_PER_MINUTE})]


def read_loops(now: datetime, since: datetime) -> list[Found]:
    """Loops that fail again and again, and those that don't run. A loop that never ran has no row yet and
    counts from `since`."""
    runs = {run.name: run for run in TickRun.objects.all()}
    found = []
    for name, loop in REGISTRY.items():
        run = runs.get(name)
        if run is not None and run.failures_in_a_row >= settings.ALERT_LOOP_FAILURES:
            found.append(Found("loop_failing", name, {"loop": name, "failures": run.failures_in_a_row}))
        last = run.finished_at if run is not None else None
        if loop.is_late(max(last or since, since), now):
            params: dict[str, Value] = {
                "loop": name,
                "period_s": loop.period_s,
                "after_s": loop.late_after_s,
            }
            found.append(Found("loop_late", name, params))
    return found


def read_queue(now: datetime, since: datetime) -> list[Found]:
    """Tasks that have waited for a place for long."""
    before = now - timedelta(seconds=settings.ALERT_PENDING_S)
    count = Task.objects.filter(
        state=State.PENDING, state_since__lt=before, group__deleted_at__isnull=True
    ).count()
    return (
        [Found("tasks_waiting", "", {"tasks": count, "after_s": settings.ALERT_PENDING_S})] if count else []
    )


def read_usage(now: datetime, since: datetime) -> list[Found]:
    """Hosts where calls have waited long to become rows, and those that no longer say whether any do."""
    after_s = settings.ALERT_USAGE_BEHIND_S
    before = now - timedelta(seconds=after_s)
    found = []
    for host in UsageHost.objects.all():
        params: dict[str, Value] = {"host": host.name, "after_s": after_s}
        if max(host.updated_at, since) < before:
            found.append(Found("usage_unheard", host.name, params))
        elif host.oldest_at is not None and host.oldest_at < before:
            found.append(Found("usage_behind", host.name, params))
    return found


TOPICS = (
    Topic(("node_lost", "node_door_closed", "all_nodes_silent"), read_nodes),
    Topic(("card_lost", "card_held"), read_cards),
    Topic(("evictions_held_back",), read_evictions),
    Topic(("loop_failing", "loop_late"), read_loops),
    Topic(("tasks_waiting",), read_queue),
    Topic(("usage_behind", "usage_unheard"), read_usage),
    Topic((backends.CODE,), backends.read_backends, holds="ALERT_ROUTE_UNSERVED_S"),
)
