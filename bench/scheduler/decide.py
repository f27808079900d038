"""The decision alone: 5,000 nodes of 8 cards, 10,000 tasks of 300 models, every filter asked, one core.

Beside it, in the same run and on the same world, a bare grouped placer that knows five columns and no filter:
free memory, GPU type, tasks a node, where models lie. Prints one JSON object as its last line. Processor time
of this process is told, which a busy machine changes least; BENCH_ROUNDS (5) rounds, medians.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from agent.contract.states import RuntimeKind, TaskType
from apps.scheduling.policy.decide import Planner
from apps.scheduling.policy.plan import Plan
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Snapshot, TaskView

NODES, CARDS, TASKS, MODELS = 5_000, 8, 10_000, 300
NODE_CAP = 12  # tasks a node may run
MODELS_A_NODE = 6
TOTALS_GB = (16, 24, 40, 48, 80, 141)
NEEDS_GB = (4, 6, 8, 12, 16, 20, 24, 32)
TENANTS, FRIENDS = 20, 5
ANY = -1
NO_FIT = 1 << 30
NOW = datetime(2026, 3, 1, tzinfo=UTC)


class World:
    """Columns for the bare placer; `snapshot` says the same, and more, to the scheduler."""

    def __init__(self, *, mixed: bool = False, seed: int = 1) -> None:
        self.mixed = mixed  # replicas of a service did not come together
        dice = np.random.default_rng(seed)
        self.kind = dice.integers(0, len(TOTALS_GB), NODES)
        self.total = np.array(TOTALS_GB)[self.kind] * 1024
        self.held = dice.choice([0, 25, 50, 75], (NODES, CARDS))
        self.free = (self.total[:, None] * (100 - self.held) // 100).astype(np.int32)
        self.running = dice.integers(0, 4, NODES).astype(np.int32)
        self.lies = np.zeros((MODELS, NODES), bool)
        self.lies[
            dice.integers(0, MODELS, NODES * MODELS_A_NODE), np.repeat(np.arange(NODES), MODELS_A_NODE)
        ] = True
        self.want = dice.integers(ANY, len(TOTALS_GB), TASKS)
        self.model = dice.integers(0, MODELS, TASKS)
        self.need = np.array(NEEDS_GB)[self.model % len(NEEDS_GB)] * 1024
        self.load = dice.uniform(5, 91, (NODES, 3))
        self.owner = dice.integers(0, TENANTS, (NODES, CARDS))

    def snapshot(self) -> Snapshot:
        tenants = range(1, TENANTS + 1)
        return Snapshot(
            tasks=tuple(self._task(number) for number in range(TASKS)),
            nodes=tuple(self._node(number) for number in range(NODES)),
            shared={
                one: frozenset(two for two in tenants if two % FRIENDS == one % FRIENDS) for one in tenants
            },
            weights={"spread": 2.0, "model": 2.0},
        )

    def _task(self, number: int) -> TaskView:
        model, want = int(self.model[number]), int(self.want[number])
        need = int(self.need[number])
        total = 48 * 1024 if want == ANY else TOTALS_GB[want] * 1024
        return TaskView(
            id=number + 1,
            public_id=f"task-{number}",
            version=0,
            tenant_id=model % TENANTS + 1,
            group_id=model * 10 + want + 2,
            priority=0,
            created_at=NOW + timedelta(milliseconds=number if self.mixed else model * 10 + want),
            task_type=TaskType.INFERENCE,
            gpu_required=1,
            gpu_type="" if want == ANY else f"Card {TOTALS_GB[want]}",
            memory_mb=need,
            percent=min(90, -(-need * 100 // total)),
            engine="vllm",
            ports=((8000, 0),),
            image="vllm:1",
            model_path=f"/models/{model}",
            volumes=("/data:/data",),
        )

    def _node(self, number: int) -> NodeView:
        running, total = int(self.running[number]), int(self.total[number])
        cpu, memory, disk = (float(value) for value in self.load[number])
        return NodeView(
            id=number + 1,
            public_id=f"node-{number}",
            name=f"n{number:05}",
            online=number % 100 != 1,
            cordoned=number % 100 == 2,
            runtime=RuntimeKind.DOCKER,
            engines=frozenset(),
            open_to=frozenset(range(1, TENANTS // 2)) if number % 50 == 3 else None,
            cards=tuple(self._card(number, slot, total) for slot in range(CARDS)),
            ports=frozenset(range(20_000, 20_000 + running)),
            siblings={-1: running},
            cpu_percent=cpu,
            memory_percent=memory,
            disk_percent=disk,
            volume_prefixes=("/models", "/data"),
            inference_cap=NODE_CAP,
            inference_count=running,
            models=frozenset(f"/models/{model}" for model in np.flatnonzero(self.lies[:, number])),
            images=frozenset({"vllm:1"} if number % 2 else ()),
            tenants=frozenset(int(one) + 1 for one in self.owner[number]),
            host_ipc=False,
        )

    def _card(self, number: int, slot: int, total: int) -> CardView:
        held, tenant = int(self.held[number, slot]), int(self.owner[number, slot]) + 1
        used = total * held // 100
        return CardView(
            id=number * CARDS + slot + 1,
            index=slot,
            vendor="nvidia",
            model=f"NVIDIA Card {total // 1024}",
            vram_total_mb=total,
            used_mb=used,
            holds=(CardHold(tenant, held, True, task_id=1, measured_mb=used),) if held else (),
            compute_capability="8.6",
            foreign_mb=0,
            link_group=slot // 4,
            pcie_root=f"root-{slot // 4}",
        )


def tightest(row: list[int], need: int) -> tuple[int, int]:
    """(What the card has that fits by the least, its place)."""
    best, card = NO_FIT, -1
    for slot, left in enumerate(row):
        if need <= left < best:
            best, card = left, slot
    return best, card


def place_bare(world: World) -> int:
    """Tasks of one (type, need, model) share a heap of scored nodes; only the node that a task went to is
    scored again. Kinds are taken one after another, not in the order in which the tasks came."""
    rows, running = world.free.tolist(), world.running.tolist()
    total = world.total.tolist()
    free, count = world.free.copy(), world.running.copy()
    of_kind = {kind: np.flatnonzero(world.kind == kind) for kind in range(len(TOTALS_GB))}
    of_kind[ANY] = np.arange(NODES)
    alike: dict[tuple[int, int, int], list[int]] = {}
    for task in range(TASKS):
        key = (int(world.want[task]), int(world.need[task]), int(world.model[task]))
        alike.setdefault(key, []).append(task)

    def worth(node: int, need: int, here: Any) -> float | None:
        best = NO_FIT if running[node] >= NODE_CAP else tightest(rows[node], need)[0]
        if best == NO_FIT:
            return None
        return 100.0 * (1 - (best - need) / total[node]) + (50.0 if here[node] else 0.0) - 2.0 * running[node]

    placed = 0
    for (want, need, model), tasks in alike.items():
        nodes, here = of_kind[want], world.lies[model]
        some = free[nodes]
        best = np.where(some >= need, some, NO_FIT).min(1)
        fits = (best < NO_FIT) & (count[nodes] < NODE_CAP)
        score = np.where(
            fits,
            100.0 * (1 - (best - need) / world.total[nodes]) + 50.0 * here[nodes] - 2.0 * count[nodes],
            -1e9,
        )
        most = min(len(nodes), len(tasks) + 8)
        top = np.argpartition(-score, most - 1)[:most] if most < len(nodes) else np.arange(len(nodes))
        heap = [(-float(score[one]), int(nodes[one])) for one in top if score[one] > -1e8]
        heapq.heapify(heap)
        for _ in tasks:
            if not heap:
                break
            node = heap[0][1]
            card = tightest(rows[node], need)[1]
            rows[node][card] -= need
            running[node] += 1
            free[node, card] -= need
            count[node] += 1
            placed += 1
            again = worth(node, need, here)
            if again is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (-again, node))
    return placed


def _cpu_s(act: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return act(), time.process_time() - began


def check(snapshot: Snapshot, plan: Plan) -> None:
    """Raises AssertionError where a card is promised beyond what it may be, or a node takes too many."""
    tasks = {task.id: task for task in snapshot.tasks}
    promised = {card.id: sum(h.percent or 0 for h in card.holds) for n in snapshot.nodes for card in n.cards}
    count = {node.id: node.inference_count for node in snapshot.nodes}
    for one in plan.placements:
        count[one.node_id] += 1
        for card in one.cards:
            promised[card] += tasks[one.task_id].percent or 100
    assert max(promised.values()) <= 90
    assert max(count.values()) <= NODE_CAP
    assert not plan.broken
    assert len(plan.placements) + len(plan.refusals) == len(tasks)


def decide_alone() -> dict[str, Any]:
    """The figures. `placed_per_s` counts the decision on columns that stand, `with_columns_per_s` also the
    building of the columns out of a snapshot; `ratio` is the first one to the bare placer's. `mixed_per_s`:
    where the replicas of a service did not come together, so that no two tasks alike follow each other."""
    world, mixed = World(), World(mixed=True).snapshot()
    snapshot = world.snapshot()
    own, whole, bare, apart = [], [], [], []
    placed = bare_placed = 0
    gc.collect()
    gc.freeze()
    gc.disable()  # as the scheduler's loop does: it makes no cycles
    for _ in range(int(os.environ.get("BENCH_ROUNDS") or 5)):
        bare_placed, spent = _cpu_s(lambda: place_bare(world))
        bare.append(bare_placed / spent)
        planner, building = _cpu_s(lambda: Planner(snapshot))
        plan, spent = _cpu_s(partial(planner.portion, TASKS, NOW))
        placed = len(plan.placements)
        own.append(placed / spent)
        whole.append(placed / (spent + building))
        check(snapshot, plan)
        plan, spent = _cpu_s(partial(Planner(mixed).portion, TASKS, NOW))
        apart.append(len(plan.placements) / spent)
        check(mixed, plan)
        gc.collect()
    paths = {task.id: task.model_path for task in snapshot.tasks}
    lies = {node.id: node.models for node in snapshot.nodes}
    plan = Planner(snapshot).portion(TASKS, NOW) or Plan()
    local = sum(paths[one.task_id] in lies[one.node_id] for one in plan.placements) / placed
    grouped, alone = statistics.median(bare), statistics.median(own)
    return {
        "nodes": NODES,
        "cards": NODES * CARDS,
        "tasks": TASKS,
        "models": MODELS,
        "placed": placed,
        "grouped_placed": bare_placed,
        "on_nodes_with_the_model": round(local, 3),
        "placed_per_s": round(alone),
        "with_columns_per_s": round(statistics.median(whole)),
        "mixed_per_s": round(statistics.median(apart)),
        "grouped_per_s": round(grouped),
        "ratio": round(alone / grouped, 2),
        "ratio_with_columns": round(statistics.median(whole) / grouped, 2),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


if __name__ == "__main__":
    print(json.dumps(decide_alone()))
