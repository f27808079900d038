"""Builders of snapshots for tests of the decision, with only what a test cares about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from agent.contract.codes import Code
from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Plan
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Reserve, Snapshot, TaskView

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NO_RESERVE = Reserve(0, 0.0)
TENANT = 1
OWN, STRANGER, FRIEND = TENANT, 2, 3


def hold(
    tenant: int = TENANT, percent: int | None = None, *, inference: bool = True, **fields: Any
) -> CardHold:
    return CardHold(tenant, percent, inference, **fields)


def card(number: int, *holds: CardHold, **fields: Any) -> CardView:
    values = {
        "id": number,
        "index": number % 8,
        "vendor": "nvidia",
        "model": "NVIDIA GeForce RTX 4090",
        "vram_total_mb": 24_000,
        "used_mb": 0,
        "holds": holds,
    }
    return CardView(**{**values, **fields})


def node(number: int, *cards: CardView, **fields: Any) -> NodeView:
    values = {
        "id": number,
        "public_id": f"node-{number}",
        "name": f"n{number:03}",
        "online": True,
        "cordoned": False,
        "runtime": RuntimeKind.DOCKER,
        "engines": frozenset({"vllm", "llamacpp"}),
        "open_to": None,
        "cards": cards,
        "cpu_percent": 10.0,
        "memory_percent": 20.0,
        "disk_percent": 30.0,
    }
    return NodeView(**{**values, **fields})


def task(number: int, **fields: Any) -> TaskView:
    values = {
        "id": number,
        "public_id": f"task-{number}",
        "version": 0,
        "tenant_id": TENANT,
        "group_id": number,
        "priority": 0,
        "created_at": NOW + timedelta(seconds=number),
        "task_type": TaskType.INFERENCE,
        "gpu_required": 1,
        "engine": "vllm",
    }
    return TaskView(**{**values, **fields})


def world(tasks: list[TaskView], nodes: list[NodeView], **fields: Any) -> Snapshot:
    return Snapshot(tasks=tuple(tasks), nodes=tuple(nodes), **fields)


def places(plan: Plan) -> dict[int, tuple[int, tuple[int, ...]]]:
    return {placed.task_id: (placed.node_id, placed.cards) for placed in plan.placements}


def codes(plan: Plan, task_id: int = 1) -> list[Code]:
    return [why.code for why in plan.refusals[task_id]]


def one(a_task: TaskView, a_node: NodeView, **fields: Any) -> Plan:
    """The plan for one task and one node."""
    return decide(world([a_task], [a_node], **fields), NOW)


def victim(number: int, tenant: int = OWN, percent: int | None = None, **fields: Any) -> CardHold:
    """A hold of task `number` that may be evicted; a higher number is a younger task."""
    values = {"task_id": number, "preemptible": True, "since": NOW + timedelta(seconds=number)}
    return hold(tenant, percent, **{**values, **fields})


def high(number: int = 1, **fields: Any) -> TaskView:
    """A task of high priority."""
    return task(number, **{"priority": 5, **fields})


def evicted(plan: Plan) -> dict[int, tuple[int, ...]]:
    """By the preempting task, whom it evicts."""
    return {made.task_id: made.victims for made in plan.preemptions}
