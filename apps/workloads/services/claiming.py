"""An agent takes a placed attempt on (AGENT-02): compare-and-set on the claim row."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import F, Q

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import HealthCheck, PipelineStage, TaskSpec
from agent.contract.states import Parallelism, Phase, TaskType
from agent.engines.catalog import get_engine
from apps.core.secrets import derive_engine_key
from apps.fleet.models import Duty, Liveness, Node
from apps.workloads.models import Claim, Task, TaskGroup
from apps.workloads.policy.moves import CLAIMABLE
from apps.workloads.policy.pipelines import HEAD
from apps.workloads.selectors import engine_of, is_pipeline, stages_of, template_of
from apps.workloads.services.porting import meeting_port, move_ports, port_mappings
from apps.workloads.state import lock_groups

# Forms whose every task is one engine over all its cards.
ON_ALL_CARDS = frozenset({Parallelism.TENSOR_PARALLEL, Parallelism.PIPELINE_PARALLEL})


def claim_task(
    *,
    node: Node,
    incarnation: str,
    task_id: str,
    attempt: int,
    now: datetime,
    busy_ports: Sequence[int] = (),
) -> TaskSpec | Reason:
    """Give an attempt to one run of a node's agent, or say why not.

    A repeat by the same run gets the same answer (its first one was lost); another run of the agent
    gets nothing, and neither does any but the newest. `busy_ports` are ports of the attempt that the run can
    not have (AGENT-07).
    """
    with transaction.atomic():
        lock_groups(Task.objects.filter(public_id=task_id).values_list("pk", flat=True))
        newest = Liveness.objects.select_for_update().filter(node=node).values_list("incarnation", flat=True)
        if newest.first() != incarnation:
            return reason(Code.CLAIM_SUPERSEDED)
        if Node.objects.filter(pk=node.pk, duty=Duty.MAINTENANCE).exists():
            return reason(Code.CLAIM_LOST)  # upkeep moves it to another node
        claim = (
            Claim.objects.select_related("task__group")
            .filter(task__public_id=task_id, attempt=attempt, node=node)
            .first()
        )
        if claim is None:
            return reason(Code.CLAIM_UNKNOWN)
        task = claim.task
        if claim.released_at is not None or task.attempt != attempt or task.state not in CLAIMABLE:
            return reason(Code.CLAIM_LOST)
        stage = _stage_of(claim)
        if isinstance(stage, Reason):
            return stage
        if not take_on(claim, incarnation, now):
            return reason(Code.CLAIM_LOST)
        if busy_ports:
            move_ports(claim, busy_ports, now=now)
        return _build_spec(claim, stage)


def take_on(claim: Claim, incarnation: str, now: datetime) -> bool:
    """Give a live claim to a run of the agent, in the transaction that holds its group's lock; False where
    another run holds it. A repeat changes nothing."""
    free = Q(incarnation="") | Q(incarnation=incarnation)
    taken = Claim.objects.filter(free, pk=claim.pk, released_at__isnull=True).update(
        incarnation=incarnation, claimed_at=claim.claimed_at or now
    )
    if taken:
        task = claim.task
        Task.objects.filter(pk=task.pk, attempt=claim.attempt, state=task.state, phase=Phase.PLACED).update(
            phase=Phase.CLAIMED,
            version=F("version") + 1,
            deadline_at=now + timedelta(seconds=patience_s(task)),
        )
    return bool(taken)


def patience_s(task: Task) -> float:
    """How long a start or wake may take before the server ends it by itself. The agent judges a load, with
    progress up to a cap of its own (AGENT-08); this is for one that never does, so it comes later."""
    return settings.START_DEADLINE_S + float((task.group.health_check or {}).get("start_period_seconds", 0))


def _can_sleep(engine: str) -> bool:
    known = get_engine(engine)
    return known is not None and known.can_sleep


def _stage_of(claim: Claim) -> PipelineStage | Reason | None:
    """What an attempt is told of its pipeline, None where it is of none; or why it can't start: an agent that
    knows no stages would start it wrong, or the head has no place any more, and recovery lets all stages
    start again together."""
    task = claim.task
    if not is_pipeline(task.group):
        return None
    if claim.node.host_ipc is None:  # told by every agent that knows them
        return reason(Code.RUNTIME_CANNOT, nodes=1)
    stages = stages_of(task)
    head = next((one for one in stages if one.rank == HEAD and one.node is not None), None)
    meeting = meeting_port(head) if head is not None else None
    if head is None or head.node is None or meeting is None:
        return reason(Code.CLAIM_LOST)
    return PipelineStage(
        rank=task.rank,
        stages=len(stages),
        world_size=task.group.world_size,
        master_host=str(head.node.dial.get("host", "")),
        master_port=meeting,
        host=str(claim.node.dial.get("host", "")),
    )


def _build_spec(claim: Claim, stage: PipelineStage | None) -> TaskSpec:
    task, group = claim.task, claim.task.group
    shares = list(claim.cards.select_related("card").order_by("card__index"))
    engine, template = engine_of(task), template_of(task)
    serves = stage is None or stage.rank == HEAD
    return TaskSpec(
        task_id=task.public_id,
        attempt=claim.attempt,
        task_type=TaskType(group.task_type),
        image=template.image,
        engine=engine,
        served_model_name=group.model_name,
        model_path=task.model_path,
        ports=port_mappings(claim),
        health_check=_health_check(group, serves),
        gpu_uuids=[share.card.uuid for share in shares],
        gpu_vendor=shares[0].card.vendor if shares else "",
        memory_percent=shares[0].percent if shares else None,
        env=task.env,
        volumes=task.volumes,
        command=list(template.command),
        tensor_parallel=max(1, len(shares)) if group.parallelism in ON_ALL_CARDS else 1,
        timeout_seconds=task.timeout_seconds,
        engine_key=derive_engine_key(task.public_id, claim.attempt) if engine and serves else "",
        sleep_enabled=group.task_type == TaskType.INFERENCE and _can_sleep(engine),
        pull_credentials=json.loads(task.pull_credentials) if task.pull_credentials else None,
        stage=stage,
    )


def _health_check(group: TaskGroup, serves: bool) -> HealthCheck:
    """A stage behind the head has nothing to be asked: that it runs is all that can be told of it."""
    return msgspec.convert(group.health_check or {}, HealthCheck) if serves else HealthCheck(type="none")
