"""A small fleet in rows, with simulated agents over the real services and loops, for random stories.

Owns the agents: what each has heard and what it runs. Containers of one outlive it, as Docker's do. Reports
arrive at once, or never where their node is cut off. The clock is a number here; nothing sleeps.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Q, QuerySet

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import RunningReport, TaskReport
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.core import leases, ticks
from apps.core.models import TickRun
from apps.fleet.models import Liveness, Node, Port
from apps.tenants.scope import viewer_of
from apps.workloads.models import CardClaim, Claim, Event, Loan, Reservation, Task
from apps.workloads.policy.moves import derive_group_state, is_allowed
from apps.workloads.selectors import desired_of, ready_replicas
from apps.workloads.services import apply_report, claim_task, reconcile_node
from tests import factories

LOOPS = ("scheduling.place", "recovery.sweep", "upkeep.drain", "usage.card_time")
Key = tuple[str, int]
PAUSE = timedelta(seconds=settings.PREEMPTION_PAUSE_S)

# What `World.check` reads after each step of each story.
_LENT = Loan.objects.filter(ended_at__isnull=True)
_OVER = Q(card__claim__released_at__isnull=False) | Q(borrower__released_at__isnull=False)
CARDS_HELD_ALONE = (
    CardClaim.objects.filter(claim__released_at__isnull=True)
    .exclude(claim__in=_LENT.values("borrower"))
    .values_list("card_id")
)
CLAIMS = Claim.objects.filter(released_at__isnull=True).values_list("task__public_id", "attempt", "node_id")
TASKS = Task.objects.values_list("group_id", "group__state", "public_id", "attempt", "node_id", "state")
PORTS = Port.objects.values_list("owner", "attempt")
LOANS_WITHOUT_A_CLAIM = _LENT.filter(_OVER).values_list("pk")
LENDERS_THAT_WAKE = _LENT.filter(card__claim__task__state=State.WAKING).values_list("pk")


def read(query: QuerySet[Any, Any]) -> list[tuple[Any, ...]]:
    """Its rows as the database gives them. Django takes ten times as long to make the statement as SQLite to
    answer it, so it is made once."""
    with connection.cursor() as cursor:
        cursor.execute(*_statement(query))
        return list(cursor.fetchall())


@cache
def _statement(query: QuerySet[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    return query.query.sql_with_params()


@dataclass
class Agent:
    """What one node's agent knows. `here`: its containers, as it would report them; `held_up`: its node is
    cut off. `wanted` is the list that it heard last."""

    node_id: int
    run: int = 1
    sequence: int = 0
    held_up: bool = False
    here: dict[Key, Observed] = field(default_factory=dict)
    wanted: dict[Key, Any] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return f"run-{self.run}"


class World:
    """Two nodes with cards and one without, people who may do everything, and three services that run."""

    def __init__(self) -> None:
        self.now: datetime = factories.NOW
        tenant = factories.make_tenant()
        self.member = viewer_of(factories.make_member(tenant))
        self.operator = viewer_of(factories.make_operator())
        self.tenant = tenant
        self.agents = [Agent(factories.make_node(cards=number, now=self.now).pk) for number in (2, 1, 0)]
        self.groups = [
            self.new_group(TaskType.INFERENCE, replicas=2, gpus=1),
            self.new_group(TaskType.INFERENCE, replicas=1, gpus=0),
            self.new_group(TaskType.TRAINING, replicas=1, gpus=1),
        ]
        for _ in range(2):
            self.go_on()

    def new_group(self, kind: TaskType, *, replicas: int, gpus: int, priority: int = 0) -> int:
        group = factories.make_group(
            self.tenant,
            task_type=kind,
            min_replicas=1,
            max_replicas=3,
            priority=priority,
            preemptible=True,
            now=self.now,
        )
        for _ in range(replicas):
            factories.make_task(group, gpu_required=gpus, ports=[{"container_port": 8000}], now=self.now)
        return group.pk

    # --- what goes on by itself ---

    def wait(self, seconds: float) -> None:
        """Time passes; whoever is not cut off is heard of all the while."""
        self.now += timedelta(seconds=seconds)
        for agent in self.agents:
            if not agent.held_up:
                Liveness.objects.filter(node=agent.node_id).update(last_seen_at=self.now)

    def run_loop(self, name: str) -> None:
        """A run that fails, or one of whose steps does, is a fault whatever it met."""
        lease = leases.acquire(name, "story", 3600)
        assert lease is not None
        done = ticks._run_held(ticks.REGISTRY[name], lease, self.now)  # not its connection's end
        assert done is not None, TickRun.objects.filter(name=name).values()
        assert "failed" not in done, done

    def go_on(self) -> None:
        """The usual course: what waits is placed, taken on and ready."""
        self.run_loop("scheduling.place")
        self.agents_act()
        for agent in self.agents:
            for key, seen in agent.here.items():
                if seen is Observed.STARTING:
                    agent.here[key] = Observed.READY
                    self.tell(agent, key, Observed.READY)

    def agents_act(self) -> None:
        for agent in self.agents:
            self.beat(agent)
            self.carry_out(agent)

    def beat(self, agent: Agent) -> None:
        """One heartbeat: the agent's complete list, and the server's."""
        if agent.held_up:
            return
        node = Node.objects.only("public_id").get(pk=agent.node_id)
        Liveness.objects.filter(node=node).update(
            last_seen_at=self.now, incarnation=agent.incarnation, declared_lost_at=None
        )
        running = [RunningReport(task, attempt, seen) for (task, attempt), seen in agent.here.items()]
        reconcile_node(node=node, running=running, now=self.now)
        agent.wanted = {(task.task_id, task.attempt): task for task in desired_of(node)}

    def carry_out(self, agent: Agent) -> None:
        """The agent makes its containers what it heard last, however long ago that was."""
        for key in [*agent.here]:
            wanted = agent.wanted.get(key)
            if wanted is None or (wanted.desired is Desired.STOP and wanted.sleep is None):
                del agent.here[key]
                self.tell(agent, key, Observed.GONE, reason(Code.STOP_CONFIRMED))
            elif wanted.sleep is not None and agent.here[key] is not Observed.ASLEEP:
                agent.here[key] = Observed.ASLEEP
                self.tell(agent, key, Observed.ASLEEP)
            elif wanted.desired is Desired.RUN and agent.here[key] is Observed.ASLEEP:
                agent.here[key] = Observed.STARTING
                self.tell(agent, key, Observed.STARTING)
        for key, wanted in agent.wanted.items():
            if key in agent.here:
                continue
            if wanted.desired is Desired.RUN:
                self.take_on(agent, key)
            else:
                self.tell(agent, key, Observed.GONE, reason(Code.STOP_CONFIRMED))

    def take_on(self, agent: Agent, key: Key) -> None:
        if agent.held_up:
            return
        node = Node.objects.get(pk=agent.node_id)
        answer = claim_task(
            node=node, incarnation=agent.incarnation, task_id=key[0], attempt=key[1], now=self.now
        )
        if not isinstance(answer, Reason):
            agent.here[key] = Observed.STARTING
            self.tell(agent, key, Observed.STARTING)

    def tell(
        self, agent: Agent, key: Key, seen: Observed, why: Reason | None = None, code: int | None = None
    ) -> None:
        """One report; lost where the node is cut off (its next lists tell the same)."""
        agent.sequence += 1
        if agent.held_up:
            return
        phase = {Observed.READY: Phase.READY, Observed.STARTING: Phase.LOADING}.get(seen, Phase.LEAVING)
        report = TaskReport(agent.sequence, key[0], key[1], phase, seen, why, code)
        node = Node.objects.only("public_id").get(pk=agent.node_id)
        apply_report(node=node, incarnation=agent.incarnation, report=report, now=self.now)

    def restart(self, agent: Agent) -> None:
        """The next run of the agent finds the containers; it has heard nothing yet, and its first heartbeat
        makes it the newest."""
        agent.run, agent.sequence, agent.wanted = agent.run + 1, 0, {}
        if not agent.held_up:
            Liveness.objects.filter(node=agent.node_id).update(
                incarnation=agent.incarnation, report_sequence=0, last_seen_at=self.now
            )

    # --- what must always hold ---

    def check(self, seen_events: int) -> int:
        """Raises AssertionError for what is impossible; answers the newest event's row id."""
        newest = self.check_events(seen_events)
        cards = [card for (card,) in read(CARDS_HELD_ALONE)]
        assert len(cards) == len(set(cards)), "a card that is held alone is held once, but for borrowers"
        claims = set(read(CLAIMS))
        held = {(task_id, attempt) for task_id, attempt, _ in claims}
        states: dict[tuple[int, str], list[State]] = {}
        for group, whole, task_id, attempt, node, state in read(TASKS):
            states.setdefault((group, whole), []).append(State(state))
            if state in (State.SLEEPING, State.WAKING) and node is not None:
                assert (task_id, attempt, node) in claims, f"what is {state} keeps its place"
        for (_, whole), of_tasks in states.items():
            assert whole == derive_group_state(of_tasks), (whole, of_tasks)
        assert set(read(PORTS)) <= held, "a port is held by a claim that lives"
        if newest != seen_events:
            served = [(one.task_id, one.attempt) for one in ready_replicas()]
            assert len(served) == len({task for task, _ in served})
            assert set(served) <= held, "what gets calls has its place"
        assert read(LOANS_WITHOUT_A_CLAIM) == [], "a loan ends with either of its claims"
        assert read(LENDERS_THAT_WAKE) == [], "no lender wakes before"
        return newest

    def check_events(self, seen_events: int) -> int:
        """The moves since that one, each allowed; and where there were any, who gave way, and how often."""
        moves = Event.objects.filter(pk__gt=seen_events).values_list("pk", "from_state", "to_state")
        newest = seen_events
        for pk, before, after in moves.order_by("pk"):
            newest = pk
            if before and after:
                assert is_allowed(State(before), State(after)), (before, after)
        if newest == seen_events:
            return newest
        evicted = Event.objects.filter(code=Code.PREEMPTED).order_by("at").values_list("task", "at")
        last: dict[int | None, datetime] = {}
        for task, at in evicted:
            earlier = last.get(task)
            assert earlier is None or at >= earlier + PAUSE, "nobody gives way twice within the pause"
            last[task] = at
        return newest

    # --- the end of every story ---

    def settle(self, rounds: int = 30) -> list[Any]:
        """All nodes are back, and everything has its time; what is left nevertheless."""
        for agent in self.agents:
            agent.held_up = False
        left: list[Any] = []
        for _ in range(rounds):
            self.agents_act()
            for name in ("recovery.sweep", "upkeep.drain"):
                self.run_loop(name)
            self.wait(20)
            left = self.leftovers()
            if not left:
                break
        return left

    def leftovers(self) -> list[Any]:
        """What is there after everything was told to stop; empty where all is well."""
        ended = (State.STOPPED, State.COMPLETED)
        tasks = Task.objects.exclude(state__in=ended).values_list("name", "state", "desired", "reason_code")
        claims = Claim.objects.filter(released_at__isnull=True).values_list(
            "task__name", "attempt", "node_id"
        )
        here = [(agent.node_id, key) for agent in self.agents for key in agent.here]
        kept = Reservation.objects.values_list("task__name", "node_id")
        return [*tasks, *claims, *Port.objects.values_list("owner", "attempt"), *kept, *here]


@contextmanager
def quiet() -> Iterator[None]:
    """Stories are told by their steps, not by the logs of loops; other tests read theirs."""
    log = logging.getLogger("heteroflow")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def pick(rows: Iterable[Any], number: int) -> Any:
    """One of some rows, by any number; None of none."""
    found = list(rows)
    return found[number % len(found)] if found else None
