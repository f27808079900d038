"""Metrics that stand in rows: loops, machines, queue, alerts (OPS-04).

One statement a table and a handful a scrape, whatever the size of the fleet. A database that does not
answer makes all of them absent, never zero, and `heteroflow_database_up` 0. Labels are closed sets (names of
loops, states, reason codes, hosts of ours); no tenant, person, service or node is named.
"""

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime

from django.db import DatabaseError, InterfaceError
from django.db.models import Count, Q
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from agent.contract.states import State
from apps.alerts.kinds import KINDS
from apps.alerts.selectors import count_open, count_waiting
from apps.core.clock import utc_now
from apps.core.models import Lease, TickRun
from apps.core.ticks import REGISTRY
from apps.fleet.models import Card, DoorState, Node
from apps.fleet.selectors import silent_before
from apps.workloads.models import Claim, Task

log = logging.getLogger("heteroflow.ops")


class RowMetrics:
    """A collector for prometheus_client; `collect` is one scrape."""

    def describe(self) -> Iterable[Metric]:
        """Nothing: asking at registration would ask the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            found = read_rows(utc_now())
        except (DatabaseError, InterfaceError) as error:
            log.warning("metrics: the database does not answer: %s", error)
            found = []
        yield _one("heteroflow_database_up", "Whether the database answered this scrape.", int(bool(found)))
        yield from found


def read_rows(now: datetime) -> list[Metric]:
    """All metrics of rows at a moment. Raises DatabaseError."""
    return [*_loops(now), *_leases(), *_nodes(now), *_work(), *_alerts()]


def _loops(now: datetime) -> list[Metric]:
    age = _family("heteroflow_loop_last_run_age_seconds", "Since the last run of a loop ended.", "loop")
    took = _family("heteroflow_loop_last_run_duration_seconds", "What the last run took.", "loop")
    good = _family("heteroflow_loop_last_run_succeeded", "1 when the last run was done, else 0.", "loop")
    failures = _family(
        "heteroflow_loop_failures_in_a_row", "Runs that failed since the last good one.", "loop"
    )
    late_after = _family(
        "heteroflow_loop_late_after_seconds", "A loop whose last run ended longer ago is late.", "loop"
    )
    for name, loop in REGISTRY.items():
        late_after.add_metric([name], loop.late_after_s)
    for run in TickRun.objects.all():
        if run.finished_at is not None:
            age.add_metric([run.name], max((now - run.finished_at).total_seconds(), 0.0))
        if run.duration_ms is not None:
            took.add_metric([run.name], run.duration_ms / 1000)
        if run.outcome:
            good.add_metric([run.name], int(run.outcome == "done"))
        failures.add_metric([run.name], run.failures_in_a_row)
    return [age, late_after, took, good, failures]


def _leases() -> list[Metric]:
    """The holder by its host only: the rest of a holder's name is new with each run."""
    held = _family("heteroflow_loop_lease_held", "1 while a host runs the loop, else 0.", "loop", "host")
    fence = _family("heteroflow_loop_lease_fence", "Number of the lease; rises with each run.", "loop")
    for name, holder, number in Lease.objects.values_list("name", "holder", "fence"):
        held.add_metric([name, holder.partition(":")[0]], int(bool(holder)))
        fence.add_metric([name], number)
    return [held, fence]


def _nodes(now: datetime) -> list[Metric]:
    lost = Q(liveness__declared_lost_at__isnull=False)
    fresh = Q(liveness__last_seen_at__gte=silent_before(now))
    never = Q(liveness__last_seen_at__isnull=True)
    counts = Node.objects.aggregate(
        online=Count("pk", filter=fresh & ~lost),
        silent=Count("pk", filter=~fresh & ~lost & ~never),
        offline=Count("pk", filter=lost | never),
        cordoned=Count("pk", filter=Q(cordoned=True)),
        closed=Count("pk", filter=Q(liveness__door_state=DoorState.CLOSED)),
    )
    nodes = _family(
        "heteroflow_nodes", "Nodes: heard of, silent and not yet given up, lost or never heard of.", "state"
    )
    for state in ("online", "silent", "offline"):
        nodes.add_metric([state], counts[state])
    present = Card.objects.aggregate(
        here=Count("pk", filter=Q(present=True)), gone=Count("pk", filter=Q(present=False))
    )
    cards = _family("heteroflow_cards", "Cards that their node reports, and those that left.", "state")
    cards.add_metric(["present"], present["here"])
    cards.add_metric(["missing"], present["gone"])
    return [
        nodes,
        cards,
        _one("heteroflow_nodes_cordoned", "Nodes closed for new work.", counts["cordoned"]),
        _one("heteroflow_node_doors_closed", "Nodes whose door can't be reached.", counts["closed"]),
    ]


def _work() -> list[Metric]:
    tasks = _family("heteroflow_tasks", "Tasks by state.", "state")
    pending = _family("heteroflow_tasks_pending", "Waiting tasks by the reason that they wait for.", "reason")
    by_state: dict[str, int] = dict.fromkeys(State, 0)
    for state, code, count in (
        Task.objects.order_by().values_list("state", "reason_code").annotate(Count("pk"))
    ):
        by_state[state] = by_state.get(state, 0) + count
        if state == State.PENDING:
            pending.add_metric([code or "none"], count)
    for state, count in by_state.items():
        tasks.add_metric([state], count)
    claims = Claim.objects.filter(released_at__isnull=True).count()
    return [tasks, pending, _one("heteroflow_claims", "Placements that hold room on a node.", claims)]


def _alerts() -> list[Metric]:
    alerts = _family("heteroflow_alerts_open", "Open alerts by code.", "code")
    counts = count_open()
    for code in KINDS:
        alerts.add_metric([code], counts.get(code, 0))
    return [
        alerts,
        _one("heteroflow_alert_messages_waiting", "Messages to webhooks on their way.", count_waiting()),
    ]


def _family(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
