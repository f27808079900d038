"""The work of a workload file: which tasks arrive when, what they ask for, how long they run.

Owns the file's form, its rules, and the draws: equal files and seeds give equal work. Numbers tasks and
groups from 1 on in the order of arrival.
"""

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from agent.contract.states import Parallelism, TaskType
from apps.scheduling.mounts import host_paths
from apps.scheduling.policy.snapshot import TaskView
from apps.scheduling.simulation.files import (
    Amount,
    Count,
    Entry,
    Name,
    Seconds,
    Span,
    read,
    require,
    require_spans,
)
from apps.workloads.policy.pipelines import ports_of_stage

LARGEST_WORKLOAD = 1_000_000  # tasks
CONTAINER_PORT = 8000
Degree = Annotated[int, msgspec.Meta(ge=0, le=1024)]
# Of two: a tuple of that length beside a number with limits crashes msgspec 0.23, so `_check_work` counts.
OneOrRange = Seconds | tuple[Seconds, ...]


class TenantEntry(Entry, frozen=True, kw_only=True):
    """`shares_with`: tenants whose work may stand on a card with its own (SCHED-09), in both directions.
    `lends`: whether training may borrow the cards of its sleeping services, for `loan_max_minutes` at most
    (null = the installation's)."""

    shares_with: tuple[Name, ...] = ()
    weight: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    lends: bool = True
    loan_max_minutes: Annotated[int, msgspec.Meta(ge=1, le=525_600)] | None = None


class Work(Entry, frozen=True, kw_only=True):
    """`count` groups alike, each of `replicas` tasks (`stages` where it is a pipeline, which start together).

    They arrive at `at_s`, each `every_s` after the one before; a range of two draws each arrival, or running
    time, evenly from it. `duration_s` null = it runs to the end. `memory_mb` is the estimate of one task over
    all its `cards`, `percent` its promise on its one card. `sleeps`: spans of the replay in which it sleeps
    while it runs. `models`: so many models, `model_path` with -1, -2 and so on, are drawn from."""

    name: Name
    tenant: Name
    count: Count = 1
    replicas: Count = 1
    at_s: OneOrRange = 0.0
    every_s: Seconds = 0.0
    duration_s: OneOrRange | None = None
    task_type: TaskType = TaskType.INFERENCE
    parallelism: Parallelism = Parallelism.SINGLE
    stages: Count = 1
    priority: Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)] = 0
    preemptible: bool = False
    gpu_type: str = ""
    cards: Degree = 1
    memory_mb: Amount | None = None
    percent: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    engine: str = "vllm"
    image: str = ""
    model_path: str = ""
    models: Amount = 0
    volumes: tuple[Name, ...] = ()
    ports: Annotated[int, msgspec.Meta(ge=0, le=16)] | None = None
    may_borrow: bool = True
    lend: bool = True
    sleeps: tuple[Span, ...] = ()

    @property
    def serves(self) -> bool:
        """It is inference (SCHED-08)."""
        return self.task_type == TaskType.INFERENCE

    @property
    def container_ports(self) -> tuple[tuple[int, int], ...]:
        """(container port, 0 for any host port) of each port of a task; without any it counts for neither
        commitment nor cap (SCHED-16)."""
        count = int(self.serves) if self.ports is None else self.ports
        return tuple((CONTAINER_PORT + number, 0) for number in range(count))


class WorkloadFile(Entry, frozen=True, kw_only=True):
    """A workload file. `period_s`: how often the scheduler looks (null = the installation's)."""

    about: str = ""
    seed: int = 1
    period_s: Seconds | None = None
    until_s: Seconds | None = None
    tenants: dict[str, TenantEntry] = msgspec.field(default_factory=dict)
    tasks: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One task that arrives: `at_s` and `duration_s` are drawn; a pipeline's stages share a `group`."""

    id: int
    name: str
    group: int
    rank: int
    at_s: float
    duration_s: float | None
    model_path: str
    work: Work

    @property
    def gang(self) -> str:
        """Tasks of one are placed all or none."""
        return f"{self.group}.1" if self.work.stages > 1 else ""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant by name and row id."""

    id: int
    name: str
    shares_with: frozenset[int]
    weight: float
    lends: bool
    loan_max_s: float | None


@dataclass(frozen=True, slots=True)
class Workload:
    """Items in the order of arrival; tenants by name."""

    about: str
    seed: int
    period_s: float | None
    until_s: float | None
    tenants: dict[str, Tenant]
    items: tuple[Item, ...]


def read_workload(path: Path, seed: int | None = None) -> Workload:
    """Raises BadFile. `seed` replaces the file's."""
    file = read(path, WorkloadFile)
    _check(path, file)
    chosen = file.seed if seed is None else seed
    dice = random.Random(chosen)  # noqa: S311 - guards nothing
    return Workload(file.about, chosen, file.period_s, file.until_s, _tenants(file), _items(file, dice))


def view_of(item: Item, tenant: Tenant, attempt: int, start: datetime) -> TaskView:
    """A waiting task as the scheduler sees it; `start` is the moment that second 0 is. The same as the loader
    makes of rows (`waiting.py`)."""
    work = item.work
    return TaskView(
        id=item.id,
        public_id=item.name,
        version=0,
        tenant_id=tenant.id,
        group_id=item.group,
        priority=work.priority,
        created_at=start + timedelta(seconds=item.at_s),
        task_type=work.task_type,
        gpu_required=work.cards,
        gpu_type=work.gpu_type,
        memory_mb=work.memory_mb,
        percent=work.percent,
        engine=work.engine if work.serves else "",
        ports=ports_of_stage(work.container_ports, item.rank) if item.gang else work.container_ports,
        attempt=attempt,
        rank=item.rank,
        image=work.image,
        model_path=item.model_path,
        volumes=host_paths(work.volumes, item.model_path),
        counted=bool(work.container_ports),
        preemptible=work.preemptible,
        host_network=bool(item.gang),
        gang=item.gang,
        gang_size=work.stages,
        may_borrow=work.may_borrow and work.task_type == TaskType.TRAINING and work.cards > 0,
    )


def _check(path: Path, file: WorkloadFile) -> None:
    require(bool(file.tasks), path, "tasks", "there is none; name at least one")
    for name, tenant in file.tenants.items():
        for other in tenant.shares_with:
            require(
                other in file.tenants, path, f"tenants.{name}.shares_with", f"{other!r} is no tenant here"
            )
    total, names = 0, set[str]()
    for place, work in enumerate(file.tasks):
        field = f"tasks[{place}]"
        total += work.count * work.replicas * work.stages
        require(total <= LARGEST_WORKLOAD, path, field, f"there are more than {LARGEST_WORKLOAD:,} tasks")
        require(work.name not in names, path, f"{field}.name", f"{work.name!r} stands there twice")
        names.add(work.name)
        if file.tenants:
            require(
                work.tenant in file.tenants, path, f"{field}.tenant", f"{work.tenant!r} is no tenant here"
            )
        _check_work(path, field, work)


def _check_work(path: Path, field: str, work: Work) -> None:
    for name, value in (("at_s", work.at_s), ("duration_s", work.duration_s)):
        if isinstance(value, tuple):
            rule = f"is {list(value)}; a range has two numbers, the smaller one first"
            require(len(value) == 2 and value[0] <= value[1], path, f"{field}.{name}", rule)
    require_spans(path, f"{field}.sleeps", work.sleeps)
    kind, cards, form = work.task_type, work.cards, work.parallelism
    serves, pipeline = kind == TaskType.INFERENCE, form == Parallelism.PIPELINE_PARALLEL
    staged = "a pipeline_parallel has two or more, every other form one"
    rules = [
        (work.percent is None or cards == 1, "percent", f"is a promise on one card, and cards is {cards}"),
        (work.percent is None or serves, "percent", f"is for inference, and task_type is {kind}"),
        (not work.sleeps or serves, "sleeps", f"is for inference, and task_type is {kind}"),
        (not work.sleeps or not pipeline, "sleeps", "is not for pipelines"),
        ((work.stages > 1) == pipeline, "stages", f"is {work.stages} and parallelism {form}; {staged}"),
        (work.stages == 1 or work.replicas == 1, "replicas", "is not for pipelines, which have stages"),
        (form != Parallelism.TENSOR_PARALLEL or cards > 1, "cards", f"is {cards}; {form} has two or more"),
        (not work.models or bool(work.model_path), "models", "numbers model_path, and that is empty"),
    ]
    for fits, name, rule in rules:
        require(fits, path, f"{field}.{name}", rule)


def _tenants(file: WorkloadFile) -> dict[str, Tenant]:
    entries = file.tenants or {work.tenant: TenantEntry() for work in file.tasks}
    ids = {name: row for row, name in enumerate(entries, 1)}
    together: dict[str, set[int]] = {name: set() for name in entries}
    for name, entry in entries.items():
        for other in entry.shares_with:
            together[name].add(ids[other])
            together[other].add(ids[name])
    return {
        name: Tenant(
            ids[name],
            name,
            frozenset(together[name] - {ids[name]}),
            entry.weight,
            entry.lends,
            None if entry.loan_max_minutes is None else entry.loan_max_minutes * 60.0,
        )
        for name, entry in entries.items()
    }


def _items(file: WorkloadFile, dice: random.Random) -> tuple[Item, ...]:
    drawn: list[tuple[float, Work, str, float | None, str]] = []
    for work in file.tasks:
        for number in range(work.count):
            at = _draw(dice, work.at_s) + number * work.every_s
            name = work.name if work.count == 1 else f"{work.name}-{number + 1}"
            duration = None if work.duration_s is None else _draw(dice, work.duration_s)
            model = f"{work.model_path}-{dice.randrange(work.models) + 1}" if work.models else work.model_path
            drawn.append((at, work, name, duration, model))
    items: list[Item] = []
    drawn.sort(key=lambda row: row[0])  # of those that arrive together the file's order counts
    for group, (at, work, name, duration, model) in enumerate(drawn, 1):
        size = max(work.replicas, work.stages)
        for rank in range(size):
            own = name if size == 1 else f"{name}.{rank}"
            items.append(Item(len(items) + 1, own, group, rank, at, duration, model, work))
    return tuple(items)


def _draw(dice: random.Random, value: OneOrRange) -> float:
    return round(dice.uniform(value[0], value[1]), 3) if isinstance(value, tuple) else value
