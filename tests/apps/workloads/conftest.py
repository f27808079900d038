"""A small shop: a node with cards, a lease of the scheduler, and short ways through a task's life."""

import pytest

from agent.contract.codes import Reason
from agent.contract.messages import TaskReport, TaskSpec
from agent.contract.states import Observed, Phase
from apps.core import leases
from apps.fleet.models import Node
from apps.workloads import services
from apps.workloads.models import Task
from apps.workloads.services import Placement
from tests.factories import NOW


@pytest.fixture
def lease(db: None) -> leases.Held:
    held = leases.acquire("scheduling.place", "test", 60)
    assert held is not None
    return held


class Life:
    """Drives a task as scheduler and agent would."""

    def __init__(self, lease: leases.Held) -> None:
        self.lease = lease
        self.sequence = 0

    def place(self, task: Task, node: Node, *, percent: int | None = None, port: int = 20001) -> Task:
        task.refresh_from_db()
        cards = tuple(node.cards.values_list("pk", flat=True)[: task.gpu_required])
        placement = Placement(task.pk, task.version, node.pk, cards, percent, ((8000, port),))
        services.commit_placements(lease=self.lease, placements=[placement], now=NOW)
        task.refresh_from_db()
        return task

    def claim(self, task: Task, node: Node, incarnation: str = "run-1") -> TaskSpec | Reason:
        return services.claim_task(
            node=node, incarnation=incarnation, task_id=task.public_id, attempt=task.attempt, now=NOW
        )

    def report(
        self, task: Task, node: Node, observed: Observed, phase: Phase = Phase.NONE, **more: object
    ) -> Task:
        self.sequence += 1
        report = TaskReport(
            sequence=int(more.pop("sequence", self.sequence)),  # type: ignore[call-overload]
            task_id=task.public_id,
            attempt=int(more.pop("attempt", task.attempt)),  # type: ignore[call-overload]
            phase=phase,
            observed=observed,
            **more,  # type: ignore[arg-type]
        )
        incarnation = "run-1"
        services.apply_report(node=node, incarnation=incarnation, report=report, now=NOW)
        task.refresh_from_db()
        return task

    def run(self, task: Task, node: Node, **placing: object) -> Task:
        self.place(task, node, **placing)  # type: ignore[arg-type]
        assert isinstance(self.claim(task, node), TaskSpec)
        return self.report(task, node, Observed.READY, Phase.READY)


@pytest.fixture
def life(lease: leases.Held) -> Life:
    return Life(lease)
