"""A replay sees nodes and waiting tasks as the live loop would see the same of rows."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.contract.states import Desired, Parallelism, State, TaskType
from apps.fleet.models import CardSample, Node
from apps.scheduling.policy.snapshot import NodeView, TaskView
from apps.scheduling.selectors import load_snapshot
from apps.scheduling.simulation.occupancy import Occupancy, Stand
from apps.scheduling.simulation.replay import START
from apps.scheduling.simulation.workload import view_of
from apps.tenants.models import Tenant
from apps.workloads.models import Lend, Task
from tests import factories
from tests.unit.simulation.worlds import fleet_of, nodes, service, training, work, workload_of

pytestmark = [pytest.mark.django_db, pytest.mark.req("SCHED-14", "SCHED-15")]

NOW = START + timedelta(seconds=100)
TENANTS: dict[str, Any] = {"shop": {"shares_with": ["mail"]}, "mail": {}, "lab": {"lends": False}}
MOUNTS = {"volumes": ["/srv/set:/set:ro"], "model_path": "/srv/m"}
WORK = [
    service("chat", priority=10, preemptible=True),
    {**service("embed"), "tenant": "mail"},
    {**service("hidden", ports=0), "tenant": "mail"},
    {**work("large", memory_mb=20_000, cards=2, parallelism="tensor_parallel", priority=3), "tenant": "lab"},
    work("night", memory_mb=30_000),
    {**training("tune", memory_mb=4_000, preemptible=True), "tenant": "lab"},
    training("next", at_s=60, priority=2, cards=2, gpu_type="L20", **MOUNTS),
    {
        **service("soon", at_s=70, engine="vllm", image="vllm/vllm-openai:v1", preemptible=True),
        "tenant": "mail",
    },
    work("stage", at_s=80, memory_mb=8_000, parallelism="pipeline_parallel", stages=2, cards=1),
]
# name -> (node, cards by index)
STANDS = {
    "chat": ("a", [0]),
    "embed": ("a", [0]),
    "hidden": ("a", [0]),
    "tune": ("a", [1]),
    "large": ("b", [0, 1]),
    "night": ("c", [0]),
}


def of_a_replay(folder: Path) -> tuple[list[NodeView], dict[str, TaskView]]:
    machines = [nodes("a", 2), nodes("b", 2, host_ipc=True), nodes("c", 1, host_ipc=True)]
    fleet = fleet_of(folder, *({**one, "inference_cap": 5} for one in machines))
    workload = workload_of(folder, *WORK, tenants=TENANTS)
    places = Occupancy(fleet.machines, workload.tenants, START)
    by_name = {machine.view.name: machine.view for machine in fleet.machines}
    for item in workload.items:
        if item.name not in STANDS:
            continue
        node, indexes = STANDS[item.name]
        view = by_name[node]
        has_port = item.work.task_type == TaskType.INFERENCE and item.work.ports != 0
        stand = Stand(
            item,
            workload.tenants[item.work.tenant],
            1,
            view.id,
            tuple(view.cards[index].id for index in indexes),
            item.work.percent,
            (20_000 + item.id,) if has_port else (),
            10.0,
            sleeping=item.name == "night",
        )
        places.add(stand)
    waiting = {
        item.name: view_of(item, workload.tenants[item.work.tenant], 0, START)
        for item in workload.items
        if item.name not in STANDS
    }
    return [plain_node(view, {i.id: i.name for i in workload.items}) for view in places.views(100.0)], waiting


def of_rows() -> tuple[list[NodeView], dict[str, TaskView]]:
    tenants = {name: factories.make_tenant(name, lends=name != "lab") for name in TENANTS}
    factories.make_shared_group(tenants["shop"], tenants["mail"])
    machines = {
        name: factories.make_node(
            name,
            cards=cards,
            vram_total_mb=48_000,
            card_model="NVIDIA L20",
            now=NOW,
            last_seen_at=NOW,
            host_ipc=name != "a",
            volume_prefixes=["/"],
            inference_cap=5,
            engines=[],
            load={"cpu_percent": 0.0, "memory_percent": 0.0, "disk_percent": 0.0},
        )
        for name, cards in (("a", 2), ("b", 2), ("c", 1))
    }
    names = {}
    for number, fields in enumerate(WORK, 1):
        for task in tasks_of(fields, tenants[fields["tenant"]]):
            names[task.pk] = task.name
            if task.name in STANDS:
                stand(task, number, fields, machines)
    for node in machines.values():
        for card in node.cards.all():
            told = owned(card.pk)
            values = {"vram_used_mb": sum(told.values()), "foreign_mb": 0, "owned_mb": told}
            CardSample.objects.filter(card=card).update(**values)
    snapshot = load_snapshot(NOW)
    assert snapshot is not None
    return [plain_node(view, names) for view in snapshot.nodes], {names[t.id]: t for t in snapshot.tasks}


def tasks_of(fields: dict[str, Any], tenant: Tenant) -> list[Task]:
    stages = fields.get("stages", 1)
    task_type = TaskType(fields.get("task_type", "inference"))
    at = START + timedelta(seconds=fields.get("at_s", 0))
    cards = fields.get("cards", 1)
    group = factories.make_group(
        tenant,
        name=fields["name"],
        now=at,
        task_type=task_type,
        parallelism=Parallelism(fields.get("parallelism", "single")),
        world_size=stages * cards,
        priority=fields.get("priority", 0),
        preemptible=fields.get("preemptible", False),
        gpu_memory_utilization=fields.get("percent"),
        lend=Lend.ALLOWED,
    )
    ports = [{"container_port": 8000}] if task_type == TaskType.INFERENCE and fields.get("ports") != 0 else []
    return [
        factories.make_task(
            group,
            now=at,
            name=fields["name"] if stages == 1 else f"{fields['name']}.{rank}",
            gpu_required=cards,
            gpu_type=fields.get("gpu_type", ""),
            estimated_gpu_memory_mb=fields["memory_mb"],
            engine="vllm" if task_type == TaskType.INFERENCE else "",
            image=fields.get("image", ""),
            model_path=fields.get("model_path", ""),
            volumes=fields.get("volumes", []),
            ports=ports,
        )
        for rank in range(stages)
    ]


def stand(task: Task, number: int, fields: dict[str, Any], machines: dict[str, Node]) -> None:
    node, indexes = machines[STANDS[task.name][0]], STANDS[task.name][1]
    sleeps = task.name == "night"
    state, desired = (State.SLEEPING, Desired.SLEEP) if sleeps else (State.RUNNING, Desired.RUN)
    Task.objects.filter(pk=task.pk).update(state=state, desired=desired, attempt=1, node=node)
    cards = [node.cards.get(index=index) for index in indexes]
    since = START + timedelta(seconds=10)
    factories.make_claim(task, node, cards=cards, percent=fields.get("percent"), attempt=1, now=since)
    if task.ports:
        node.ports.create(number=20_000 + number, container_port=8000, owner=task.public_id, attempt=1)


def owned(card: int) -> dict[str, int]:
    shares = {"chat": 10_000, "embed": 10_000, "hidden": 10_000, "large": 10_000, "night": 0, "tune": 4_000}
    rows = Task.objects.filter(claims__cards__card=card).values_list("public_id", "name")
    return {f"{public_id}.1": shares[name] for public_id, name in rows}


def plain_node(view: NodeView, names: dict[int, str]) -> Any:
    """Without row ids: holds tell the name of their task, and are in the order of names."""
    cards = tuple(
        (
            replace(card, id=0, holds=(), pcie_root=""),
            sorted(
                (names[hold.task_id], hold.tenant_id, replace(hold, task_id=0, tenant_id=0))
                for hold in card.holds
            ),
        )
        for card in view.cards
    )
    return (
        replace(view, id=0, public_id="", cards=(), siblings={}, port_first=0, port_last=0),
        sorted(view.siblings.values()),
        cards,
    )


def test_nodes_are_the_same(tmp_path: Path):
    replayed, _ = of_a_replay(tmp_path)
    rows, _ = of_rows()
    ids = tenant_ids(rows, replayed)

    for on_paper, live in zip(replayed, rows, strict=True):
        (paper_view, *paper), (live_view, *living) = on_paper, live
        assert renamed(paper_view, ids) == live_view
        assert paper[0] == living[0]
        for (paper_card, paper_holds), (card, holds) in zip(paper[1], living[1], strict=True):
            assert paper_card == card
            assert [(name, ids[tenant], hold) for name, tenant, hold in paper_holds] == holds


def tenant_ids(rows: list[Any], replayed: list[Any]) -> dict[int, int]:
    """From a replay's row ids of tenants to those of rows, by whose tasks hold cards."""
    by_task = [
        {name: tenant for _, _, cards in found for _, holds in cards for name, tenant, _ in holds}
        for found in (replayed, rows)
    ]
    return {tenant: by_task[1][name] for name, tenant in by_task[0].items()}


def renamed(view: NodeView, ids: dict[int, int]) -> NodeView:
    return replace(
        view,
        tenants=frozenset(ids[tenant] for tenant in view.tenants),
        host_wide=frozenset(ids[tenant] for tenant in view.host_wide),
    )


def test_waiting_tasks_are_the_same(tmp_path: Path):
    _, replayed = of_a_replay(tmp_path)
    _, rows = of_rows()

    assert replayed.keys() == rows.keys() == {"next", "soon", "stage.0", "stage.1"}
    for name, on_paper in replayed.items():
        live = rows[name]
        ids = {
            "id": live.id,
            "public_id": live.public_id,
            "tenant_id": live.tenant_id,
            "group_id": live.group_id,
        }
        gang = {"gang": live.gang} if on_paper.gang and live.gang else {}
        assert replace(on_paper, **ids, **gang) == live, name
