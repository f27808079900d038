"""Pipelines over several nodes: what each stage is told, who serves, and how they start and end together."""

from datetime import timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code, Reason
from agent.contract.messages import SleepOrder, TaskSpec
from agent.contract.states import Desired, Observed, Parallelism, Phase, State, TaskType
from apps.core import leases
from apps.core.errors import Conflict
from apps.fleet.models import Node, Port
from apps.inference.services import stop_task
from apps.tenants.scope import SYSTEM
from apps.workloads import selectors, services
from apps.workloads.models import Claim, Task, TaskGroup
from apps.workloads.policy.pipelines import MEETING_PORT
from apps.workloads.services import Placement
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_node, make_task

pytestmark = [pytest.mark.django_db, pytest.mark.req("PAR-03")]
LATER = NOW + timedelta(seconds=1)


class Pipeline:
    """Two stages of two cards on a node each, driven as scheduler and agents would."""

    def __init__(self, life: Life, lease: leases.Held, **fields: object) -> None:
        self.life, self.lease = life, lease
        form = {"parallelism": Parallelism.PIPELINE_PARALLEL, "world_size": 4, **fields}
        self.group = make_group(**form)  # type: ignore[arg-type]
        self.nodes = [self._node("10.0.0.1"), self._node("10.0.0.2")]
        image = {"image": "vllm/vllm-openai:v0.12.0", "engine": "vllm"}
        self.stages = [make_task(self.group, gpu_required=2, **image) for _ in self.nodes]

    def _node(self, host: str) -> Node:
        dial = {"kind": "door", "host": host, "port": 9000, "certificate_sha256": "ab" * 32}
        return make_node(cards=2, dial=dial, host_ipc=False)

    def place(self) -> None:
        self.fresh()
        ports = [((8000, 20001 + self.stages[0].attempt), (MEETING_PORT, 20500)), ()]
        placements = [
            Placement(
                task.pk, task.version, node.pk, tuple(node.cards.values_list("pk", flat=True)), None, held
            )
            for task, node, held in zip(self.stages, self.nodes, ports, strict=True)
        ]
        services.commit_placements(lease=self.lease, placements=placements, now=NOW)
        self.fresh()

    def claim(self) -> list[TaskSpec | Reason]:
        return [self.life.claim(task, node) for task, node in zip(self.stages, self.nodes, strict=True)]

    def report(self, rank: int, observed: Observed, phase: Phase = Phase.NONE, **more: object) -> None:
        self.life.report(self.stages[rank], self.nodes[rank], observed, phase, **more)
        self.fresh()

    def run(self) -> None:
        self.place()
        assert all(isinstance(told, TaskSpec) for told in self.claim())
        for rank in (1, 0):
            self.report(rank, Observed.READY, Phase.READY)

    def fresh(self) -> None:
        for task in self.stages:
            task.refresh_from_db()
        self.group.refresh_from_db()

    def keep(self) -> int:
        moved = services.keep_pipelines_together(lease=self.lease, now=NOW)
        self.fresh()
        return moved

    def sweep(self) -> None:
        services.rebuild_failed(lease=self.lease, now=NOW)
        self.keep()

    @property
    def states(self) -> list[str]:
        return [task.state for task in self.stages]

    def orders(self) -> list[list[tuple[str, bool]]]:
        return [
            [(one.desired, one.sleep is not None) for one in selectors.desired_of(node)]
            for node in self.nodes
        ]

    def sleep_order(self, rank: int) -> SleepOrder:
        (told,) = selectors.desired_of(self.nodes[rank])
        assert told.sleep is not None
        return told.sleep


@pytest.fixture
def pipeline(life: Life, lease: leases.Held) -> Pipeline:
    return Pipeline(life, lease)


def test_every_stage_is_told_rank_world_and_where_to_meet(pipeline: Pipeline) -> None:
    pipeline.place()
    head, last = pipeline.claim()
    assert isinstance(head, TaskSpec) and isinstance(last, TaskSpec)
    for rank, spec in enumerate((head, last)):
        assert spec.stage is not None
        assert (spec.stage.rank, spec.stage.stages, spec.stage.world_size) == (rank, 2, 4)
        assert (spec.stage.master_host, spec.stage.master_port) == ("10.0.0.1", 20500)
        assert spec.stage.host == f"10.0.0.{rank + 1}"
        assert spec.tensor_parallel == len(spec.gpu_uuids) == 2
    assert [(port.container_port, port.host_port) for port in head.ports] == [(8000, 20001)]
    assert (head.engine_key != "", last.engine_key, last.ports) == (True, "", [])
    assert (head.health_check.type, last.health_check.type) == ("http", "none")


def test_a_service_of_another_form_is_told_of_no_stage(life: Life) -> None:
    node, task = make_node(), make_task()
    life.place(task, node)
    spec = life.claim(task, node)
    assert isinstance(spec, TaskSpec) and spec.stage is None


def test_an_agent_that_knows_no_stages_is_given_none(pipeline: Pipeline) -> None:
    Node.objects.filter(pk=pipeline.nodes[1].pk).update(host_ipc=None)
    pipeline.place()
    head, last = pipeline.claim()
    assert isinstance(head, TaskSpec)
    assert isinstance(last, Reason) and last.code == Code.RUNTIME_CANNOT


def test_the_port_to_meet_at_stays_where_the_others_were_told(pipeline: Pipeline) -> None:
    pipeline.place()
    told = services.claim_task(
        node=pipeline.nodes[0],
        incarnation="run-1",
        task_id=pipeline.stages[0].public_id,
        attempt=1,
        now=NOW,
        busy_ports=[20001, 20500],
    )
    assert isinstance(told, TaskSpec) and told.stage is not None
    assert told.stage.master_port == 20500
    assert told.ports[0].host_port not in (20001, 20500)


def test_the_head_alone_serves_and_all_count_for_the_state(pipeline: Pipeline) -> None:
    pipeline.place()
    pipeline.claim()
    pipeline.report(1, Observed.READY, Phase.READY)
    assert (pipeline.states, pipeline.group.state) == (["scheduling", "running"], State.SCHEDULING)
    assert selectors.ready_replicas() == []
    pipeline.report(0, Observed.READY, Phase.READY)
    assert pipeline.group.state == State.RUNNING
    (serves,) = selectors.ready_replicas()
    assert (serves.task_id, serves.port) == (pipeline.stages[0].public_id, 20001)


@pytest.mark.req("RECOV-01")
@pytest.mark.parametrize("dead", [0, 1])
def test_one_dead_stage_starts_all_again_together(pipeline: Pipeline, dead: int) -> None:
    pipeline.run()
    pipeline.report(dead, Observed.EXITED, exit_code=1)
    assert pipeline.group.state == State.FAILED
    pipeline.sweep()
    assert pipeline.states == ["pending", "pending"] and pipeline.group.state == State.PENDING
    other = pipeline.stages[1 - dead]
    assert (other.reason_code, other.reason_params) == (Code.STAGE_LOST, {"rank": dead})
    assert other.rebuilds == 0 and pipeline.stages[dead].rebuilds == 1  # of one fault one rebuild
    assert pipeline.orders()[1 - dead] == [(Desired.STOP, False)]  # it still has its room and is told to go
    assert Claim.objects.filter(released_at__isnull=True).count() == 1
    pipeline.report(1 - dead, Observed.GONE)
    assert pipeline.states == ["pending", "pending"]
    assert Claim.objects.filter(released_at__isnull=True).count() == 0 and Port.objects.count() == 0
    pipeline.run()
    assert pipeline.states == ["running", "running"]
    assert [task.attempt for task in pipeline.stages] == [2, 2]
    assert pipeline.keep() == 0


@pytest.mark.req("RECOV-02")
def test_a_lost_node_takes_the_whole_pipeline_elsewhere(pipeline: Pipeline) -> None:
    pipeline.run()
    Task.objects.filter(pk=pipeline.stages[1].pk).update(state=State.PENDING, node=None)
    TaskGroup.objects.filter(pk=pipeline.group.pk).update(state=State.PENDING)
    assert pipeline.keep() == 1
    assert pipeline.states == ["pending", "pending"]


def test_a_stage_that_is_claimed_when_the_head_is_gone_does_not_start(pipeline: Pipeline) -> None:
    pipeline.place()
    pipeline.life.claim(pipeline.stages[0], pipeline.nodes[0])
    pipeline.report(0, Observed.EXITED, exit_code=1)
    late = pipeline.life.claim(pipeline.stages[1], pipeline.nodes[1])
    assert isinstance(late, Reason) and late.code == Code.CLAIM_LOST


def test_with_a_stage_given_up_none_goes_on_and_a_start_brings_all_back(pipeline: Pipeline) -> None:
    pipeline.run()
    Task.objects.filter(pk=pipeline.stages[1].pk).update(rebuilds=settings.REBUILD_MAX)
    pipeline.report(1, Observed.EXITED, exit_code=1)
    services.rebuild_failed(lease=pipeline.lease, now=NOW)
    assert pipeline.keep() == 1
    assert pipeline.states == ["failed", "failed"] and pipeline.group.state == State.FAILED
    assert pipeline.stages[0].reason_code == Code.STAGE_GIVEN_UP
    pipeline.report(0, Observed.GONE)
    pipeline.sweep()
    assert pipeline.states == ["failed", "failed"]
    services.start_again(actor=SYSTEM, tasks=pipeline.group.tasks.all(), now=LATER)
    pipeline.fresh()
    assert pipeline.states == ["pending", "pending"]


@pytest.mark.req("LIFE-07")
def test_a_training_of_several_nodes_fails_as_a_whole_and_ends_as_a_whole(
    life: Life, lease: leases.Held
) -> None:
    run = Pipeline(life, lease, task_type=TaskType.TRAINING)
    run.run()
    run.report(0, Observed.EXITED, exit_code=0)
    assert (run.states, run.group.state) == (["completed", "running"], State.RUNNING)
    run.report(1, Observed.EXITED, exit_code=0)
    assert run.group.state == State.COMPLETED
    broken = Pipeline(life, lease, task_type=TaskType.TRAINING)
    broken.run()
    broken.report(1, Observed.EXITED, exit_code=1)
    broken.sweep()
    assert broken.states == ["failed", "failed"] and broken.stages[0].reason_code == Code.STAGE_GIVEN_UP


@pytest.mark.req("SLEEP-01")
def test_the_head_falls_asleep_first_and_the_others_follow(pipeline: Pipeline) -> None:
    pipeline.run()
    services.request_sleep(by="ann", task=pipeline.stages[1], now=NOW)  # of whichever stage it is asked
    pipeline.fresh()
    assert pipeline.states == ["draining", "draining"]
    assert pipeline.orders() == [[(Desired.STOP, True)]] * 2
    patience = (
        settings.SLEEP_DRAIN_S + settings.STOP_DEADLINE_S
    )  # calls run through all until the head sleeps
    assert pipeline.sleep_order(0).drain_seconds == settings.SLEEP_DRAIN_S
    assert (pipeline.sleep_order(1).drain_seconds, pipeline.sleep_order(1).quiet) == (patience, False)
    assert pipeline.keep() == 0
    pipeline.report(0, Observed.ASLEEP)
    assert pipeline.keep() == 1
    assert pipeline.sleep_order(1).quiet and pipeline.keep() == 0
    pipeline.report(1, Observed.ASLEEP)
    assert pipeline.states == ["sleeping", "sleeping"] and pipeline.group.state == State.SLEEPING
    assert Claim.objects.filter(released_at__isnull=True).count() == 2

    services.request_wake(by="ann", task=pipeline.stages[1], now=LATER)
    pipeline.fresh()
    assert pipeline.states == ["waking", "waking"]
    for rank in (0, 1):
        pipeline.report(rank, Observed.READY, Phase.READY)
    assert pipeline.group.state == State.RUNNING


@pytest.mark.req("SLEEP-01")
def test_a_stage_whose_engine_ends_with_the_heads_sleeps_too(pipeline: Pipeline) -> None:
    """The engine of the others ends as soon as they lose their head."""
    pipeline.run()
    services.request_sleep(by="ann", task=pipeline.stages[0], now=NOW)
    pipeline.report(1, Observed.EXITED, exit_code=1)
    assert pipeline.states == ["draining", "sleeping"]
    pipeline.report(0, Observed.ASLEEP)
    pipeline.sweep()
    assert pipeline.states == ["sleeping", "sleeping"]


@pytest.mark.req("SLEEP-06")
def test_a_head_that_is_called_back_brings_the_others_back(pipeline: Pipeline) -> None:
    pipeline.run()
    why = Reason(Code.IDLE, {"idle_minutes": 5})
    assert services.leave_routes(pipeline.stages[0], "scaling", why, NOW)
    pipeline.fresh()
    assert pipeline.states == ["draining", "draining"]
    assert services.call_back(pipeline.stages[0], "scaling", NOW)
    pipeline.fresh()
    assert pipeline.states == ["running", "running"]


@pytest.mark.req("SLEEP-04", "SLEEP-05")
def test_no_stage_wakes_while_one_can_not(pipeline: Pipeline) -> None:
    pipeline.run()
    services.request_sleep(by="ann", task=pipeline.stages[0], now=NOW)
    pipeline.fresh()
    pipeline.report(0, Observed.ASLEEP)
    pipeline.keep()
    pipeline.report(1, Observed.ASLEEP)
    pipeline.nodes[1].liveness.last_seen_at = NOW - timedelta(seconds=settings.NODE_SILENT_S + 60)
    pipeline.nodes[1].liveness.save()
    act = services.request_wake(by="ann", task=pipeline.stages[0], now=NOW)
    pipeline.fresh()
    assert act.why.code == Code.WAKE_NODE_OFFLINE
    assert pipeline.states == ["sleeping", "sleeping"]
    assert {task.desired for task in pipeline.stages} == {Desired.RUN}
    services.request_sleep(by="ann", task=pipeline.stages[1], now=NOW)
    pipeline.fresh()
    assert {task.desired for task in pipeline.stages} == {Desired.SLEEP}


@pytest.mark.req("LIFE-04")
def test_stopping_one_stage_stops_all_and_a_pipeline_is_not_scaled(pipeline: Pipeline) -> None:
    pipeline.run()
    with pytest.raises(Conflict, match="pipeline_scales_not"):
        services.set_replicas(by="ann", group=pipeline.group, replicas=1, now=NOW)
    stop_task(actor=SYSTEM, task=pipeline.stages[1], now=NOW)
    pipeline.fresh()
    assert pipeline.states == ["stopping", "stopping"]
    for rank in (0, 1):
        pipeline.report(rank, Observed.GONE)
    pipeline.sweep()
    assert pipeline.states == ["stopped", "stopped"] and pipeline.group.state == State.STOPPED
