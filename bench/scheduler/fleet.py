"""Rows of a fleet and of work that waits for it, in the database that Django is set up on.

Six types of card over nodes of eight; a quarter of the cards is held already. What waits is mixed: shares
of a card, whole cards, several cards of one node, training; one in twenty asks for what no node has.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction

from agent.contract.messages import PORT_RANGE
from agent.contract.states import Parallelism, Phase, State, TaskType
from apps.core.versions import bump
from apps.fleet.models import Card, CardSample, Liveness, ModelFile, Node, NodeSample, Port
from apps.tenants.models import SharedGroup, Tenant, User
from apps.workloads.models import CardClaim, Claim, Event, Task, TaskGroup

CARDS = 8
TENANTS = 20
REPLICAS = 4
MODELS = 300
MODELS_A_NODE = 6
RUN = "run-1"
TYPES = (
    ("NVIDIA P100", 16_384),
    ("NVIDIA T4", 15_360),
    ("NVIDIA A10", 23_028),
    ("NVIDIA L20", 46_068),
    ("NVIDIA A800", 81_920),
    ("NVIDIA H20", 97_871),
)

People = tuple[list[Tenant], User]


@dataclass(frozen=True)
class World:
    """What was written, and up to which row ids: whatever lies above was made by a tick."""

    nodes: int
    waiting: int
    groups: list[int]
    tasks: list[int]
    last: dict[type[Any], int]


def build(nodes: int, waiting: int, now: datetime, seed: int = 1) -> World:
    """Write it into an empty database."""
    dice = random.Random(seed)
    with transaction.atomic():
        people = _people()
        cards = _machines(dice, nodes, now)
        _held(dice, cards, people, now)
        groups, tasks = _waiting(dice, waiting, people, now)
        bump()
    made = (Claim, CardClaim, Port, Event)
    last = {model: model.objects.order_by("-pk").values_list("pk", flat=True).first() or 0 for model in made}
    world = World(nodes, len(tasks), [g.pk for g in groups], [t.pk for t in tasks], last)
    _tidy()
    return world


def wind_back(world: World, now: datetime) -> None:
    """As it was before any tick; nodes were heard of just now."""
    for model, last in world.last.items():
        model.objects.filter(pk__gt=last).delete()
    pending = {"state": State.PENDING, "state_since": now, "version": 0}
    Task.objects.filter(pk__in=world.tasks).update(
        **pending, attempt=0, node=None, phase=Phase.NONE, deadline_at=None, refusals=[], not_before=None
    )
    TaskGroup.objects.filter(pk__in=world.groups).update(**pending)
    Liveness.objects.update(last_seen_at=now)
    _tidy()


def _tidy() -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _people() -> People:
    tenants = Tenant.objects.bulk_create(
        Tenant(slug=f"tenant-{number}", name=f"tenant-{number}") for number in range(TENANTS)
    )
    for number in range(0, TENANTS, 4):  # pairs that share cards; every second pair does not
        SharedGroup.objects.create(name=f"pair-{number}").tenants.set(tenants[number : number + 2])
    return tenants, User.objects.create_user(username="bench")


def _machines(dice: random.Random, nodes: int, now: datetime) -> list[Card]:
    made = Node.objects.bulk_create(
        [
            Node(
                name=f"node-{number:05}",
                hostname=f"node-{number:05}",
                machine_id=f"machine-{number}",
                secret_sha256=f"{number:064x}",
                runtime="docker",
                dial={"kind": "direct", "host": "127.0.0.1"},
                engines=[{"name": "vllm", "version": None}, {"name": "llamacpp", "version": None}],
                cpu_count=64,
                memory_total_mb=515_000,
                volume_prefixes=["/models"],
                images=["vllm/vllm-openai:latest"] if number % 2 else [],
                host_ipc=False,
            )
            for number in range(nodes)
        ],
        batch_size=1000,
    )
    Liveness.objects.bulk_create(
        [Liveness(node=node, incarnation=RUN, incarnation_started_at=1.0, last_seen_at=now) for node in made],
        batch_size=1000,
    )
    NodeSample.objects.bulk_create(
        [
            NodeSample(node=node, cpu_percent=20.0, memory_percent=30.0, disk_percent=40.0, sampled_at=now)
            for node in made
        ],
        batch_size=1000,
    )
    ModelFile.objects.bulk_create(
        [
            ModelFile(node=node, path=f"/models/model-{model}")
            for node in made
            for model in sorted(dice.sample(range(MODELS), MODELS_A_NODE))
        ],
        batch_size=1000,
    )
    cards = Card.objects.bulk_create(
        [
            Card(
                node=node,
                index=index,
                uuid=f"GPU-{node.pk}-{index}",
                vendor="nvidia",
                model=TYPES[place % len(TYPES)][0],
                vram_total_mb=TYPES[place % len(TYPES)][1],
                compute_capability="8.6",
                link_group=index // 4,
                pcie_root=f"root-{index // 4}",
            )
            for place, node in enumerate(made)
            for index in range(CARDS)
        ],
        batch_size=1000,
    )
    CardSample.objects.bulk_create(
        [
            CardSample(
                card=card,
                vram_used_mb=600,
                foreign_mb=0,
                owned_mb={},
                temperature_c=40,
                utilization_percent=0,
                sampled_at=now,
            )
            for card in cards
        ],
        batch_size=1000,
    )
    return cards


def _held(dice: random.Random, cards: list[Card], people: People, now: datetime) -> None:
    """Tasks that run: each the only one on its card, half of them on a promise."""
    taken = dice.sample(cards, len(cards) // 4)
    groups = TaskGroup.objects.bulk_create(
        _group(
            dice,
            f"running-{number}",
            people,
            now,
            percent=45 if number % 2 else None,
            state=State.RUNNING,
        )
        for number in range(-(-len(taken) // REPLICAS))
    )
    tasks = Task.objects.bulk_create(
        [
            _task(
                groups[place // REPLICAS],
                place % REPLICAS,
                now,
                state=State.RUNNING,
                node_id=card.node_id,
                attempt=1,
            )
            for place, card in enumerate(taken)
        ],
        batch_size=1000,
    )
    claims = Claim.objects.bulk_create(
        [
            Claim(
                task=task,
                attempt=1,
                node_id=card.node_id,
                incarnation=RUN,
                claimed_at=now,
                created_at=now,
            )
            for task, card in zip(tasks, taken, strict=True)
        ],
        batch_size=1000,
    )
    CardClaim.objects.bulk_create(
        [
            CardClaim(claim=claim, card=card, percent=claim.task.group.gpu_memory_utilization)
            for claim, card in zip(claims, taken, strict=True)
        ],
        batch_size=1000,
    )
    Port.objects.bulk_create(
        [
            Port(
                node_id=card.node_id,
                number=PORT_RANGE[0] + card.index,
                container_port=8000,
                owner=task.public_id,
                attempt=1,
            )
            for task, card in zip(tasks, taken, strict=True)
        ],
        batch_size=1000,
    )


def _waiting(
    dice: random.Random, waiting: int, people: People, now: datetime
) -> tuple[list[TaskGroup], list[Task]]:
    groups, wanted = [], []
    for number in range(-(-waiting // REPLICAS)):
        model = dice.randrange(MODELS)
        kind, memory_mb = TYPES[model % len(TYPES)]
        draw = dice.random()
        task: dict[str, Any] = {"gpu_type": kind if dice.random() < 0.6 else "", "gpu_required": 1}
        group: dict[str, Any] = {"percent": None}
        if draw < 0.55:  # a share of a card
            group["percent"] = dice.choice((20, 30, 40, 45))
            task["estimated_gpu_memory_mb"] = int(min(memory_mb, 15_360) * group["percent"] / 100 * 0.9)
        elif draw < 0.80:  # a whole one
            task["estimated_gpu_memory_mb"] = int(min(memory_mb, 15_360) * 0.8)
        elif draw < 0.88:  # several of one node
            task["gpu_required"] = dice.choice((2, 4))
            task["estimated_gpu_memory_mb"] = int(min(memory_mb, 15_360) * 0.8) * task["gpu_required"]
            group["parallelism"] = Parallelism.TENSOR_PARALLEL
        elif draw < 0.95:
            group["task_type"] = TaskType.TRAINING
        else:  # nowhere
            task["gpu_type"] = "NVIDIA B200"
        task["model_path"] = f"/models/model-{model}"
        task["volumes"] = ["/models:/models:ro"]
        groups.append(_group(dice, f"waiting-{number}", people, now, **group))
        wanted.append(task)
    groups = TaskGroup.objects.bulk_create(groups, batch_size=1000)
    tasks = [
        _task(group, rank, now, **fields)
        for group, fields in zip(groups, wanted, strict=True)
        for rank in range(REPLICAS)
    ][:waiting]
    return groups, Task.objects.bulk_create(tasks, batch_size=1000)


def _group(
    dice: random.Random,
    name: str,
    people: People,
    now: datetime,
    *,
    percent: int | None,
    **fields: Any,
) -> TaskGroup:
    return TaskGroup(
        tenant=dice.choice(people[0]),
        created_by=people[1],
        name=name,
        model_name=name,
        priority=dice.choice((0, 0, 0, 5, 10)),
        gpu_memory_utilization=percent,
        created_at=now - timedelta(seconds=dice.randrange(600)),
        state_since=now,
        **{"task_type": TaskType.INFERENCE, "parallelism": Parallelism.SINGLE, **fields},
    )


def _task(group: TaskGroup, rank: int, now: datetime, **fields: Any) -> Task:
    served = group.task_type == TaskType.INFERENCE
    return Task(
        group=group,
        rank=rank,
        name=f"{group.name}-{rank}",
        image="vllm/vllm-openai:latest",
        engine="vllm" if served else "",
        ports=[{"container_port": 8000, "protocol": "tcp"}] if served else [],
        created_at=group.created_at,
        state_since=now,
        **{"model_path": "/models/model", **fields},
    )
