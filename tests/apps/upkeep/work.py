"""Rows of nodes being emptied, and what loops and agents do with them, one step at a time."""

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from agent.contract.messages import TaskReport
from agent.contract.states import Observed, Phase, State
from apps.core import leases
from apps.core.leases import Held
from apps.fleet.models import Node, Port
from apps.scheduling.loop import place
from apps.upkeep.loop import drain
from apps.workloads.models import Claim, Task, TaskGroup
from apps.workloads.selectors import ready_replicas
from apps.workloads.services import apply_report, claim_task
from tests import factories
from tests.factories import NOW

_sequences = count(1)


def run_drain(now: datetime = NOW) -> dict[str, Any]:
    lease = lease_of()
    try:
        return drain(lease, now)
    finally:
        lease.release()


def serving(
    node: Node,
    group: TaskGroup | None = None,
    *,
    state: State = State.RUNNING,
    incarnation: str = "run-1",
    **fields: Any,
) -> Task:
    """A task that serves on a node, with its claim and its port."""
    group = group or factories.make_group(state=state)
    phase = Phase.READY if state == State.RUNNING else Phase.LOADING
    ports = [{"container_port": 8000, "host_port": 0}]
    task = factories.make_task(group, state=state, phase=phase, node=node, attempt=1, ports=ports, **fields)
    factories.make_claim(task, node, incarnation=incarnation)
    Port.objects.create(
        node=node, number=20000 + task.pk, owner=task.public_id, attempt=1, container_port=8000
    )
    return task


def report(task: Task, observed: Observed, now: datetime = NOW) -> None:
    """What the agent of its node tells of a task's present attempt."""
    task.refresh_from_db()
    claim = Claim.objects.get(task=task, attempt=task.attempt)
    phase = Phase.READY if observed == Observed.READY else Phase.LEAVING
    told = TaskReport(next(_sequences), task.public_id, task.attempt, phase, observed)
    apply_report(node=claim.node, incarnation="run-1", report=told, now=now)
    task.refresh_from_db()


def get_ready(task: Task, now: datetime = NOW) -> None:
    """Its node takes a placed task on, starts it and says that it is ready."""
    task.refresh_from_db()
    assert task.node is not None
    claim_task(node=task.node, incarnation="run-1", task_id=task.public_id, attempt=task.attempt, now=now)
    report(task, Observed.READY, now)


def replacement_of(task: Task) -> Task:
    return Task.objects.get(replaces=task)


def lease_of(name: str = "upkeep.drain") -> Held:
    lease = leases.acquire(name, "test", 30)
    assert lease is not None
    return lease


def sweep(what: Callable[..., Any], **kwargs: Any) -> None:
    lease = lease_of("recovery.sweep")
    what(lease=lease, now=NOW, **kwargs)
    lease.release()


def run_scheduler() -> dict[str, Any]:
    lease = lease_of("scheduling.place")
    done = place(lease, NOW)
    lease.release()
    return done


def finish(*left: Task) -> None:
    """Their nodes say that they are gone; the loop removes them."""
    late = NOW + timedelta(hours=1)
    run_drain(late)
    for task in left:
        if Claim.objects.filter(task=task, released_at__isnull=True).exists():
            report(task, Observed.GONE, late)
    run_drain(late)
    for task in left:
        assert not Task.objects.filter(pk=task.pk).exists()


def routed() -> set[str]:
    return {replica.task_id for replica in ready_replicas()}
