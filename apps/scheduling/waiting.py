"""Tasks as the scheduler sees them, of rows or of what is not written yet.

Owns what of a task placing depends on. Groups are read once, not with each of their tasks.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from django.db.models import QuerySet

from agent.contract.states import Parallelism, TaskType
from apps.core.json_text import as_text, parsed
from apps.scheduling.mounts import host_paths
from apps.scheduling.policy.snapshot import TaskView
from apps.workloads.models import Task, TaskGroup
from apps.workloads.policy.pipelines import ports_of_stage
from apps.workloads.policy.templates import Template, pick
from apps.workloads.selectors import choose_engine

log = logging.getLogger("heteroflow.scheduling")

_GROUP = (
    *("pk", "tenant_id", "priority", "task_type", "parallelism", "world_size", "preemptible"),
    "gpu_memory_utilization",
)
_GROUP_JSON = ("labels", "inference_templates")
_TASK = (
    *(
        "pk",
        "public_id",
        "version",
        "created_at",
        "group_id",
        "rank",
        "generation",
        "gpu_required",
        "gpu_type",
    ),
    *("estimated_gpu_memory_mb", "engine", "template_index", "image", "attempt", "not_before", "model_path"),
    "made_room_at",
)
_TASK_JSON = ("node_refusals", "command", "ports", "volumes")


@dataclass(slots=True)
class _Group:
    """What the tasks of a group have in common. `engines` remembers what was found out for them."""

    id: int
    tenant_id: int
    priority: int
    task_type: TaskType
    parallelism: str
    world_size: int
    preemptible: bool
    percent: int | None
    labels: Mapping[str, str]
    templates: list[dict[str, Any]]
    engines: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def is_pipeline(self) -> bool:
        return self.parallelism == Parallelism.PIPELINE_PARALLEL

    def engine(self, runs: Template) -> str:
        key = runs.engine, runs.image
        if key not in self.engines:
            self.engines[key] = choose_engine(runs.engine, self.labels, runs.image)
        return self.engines[key]


def views_of_rows(tasks: QuerySet[Task]) -> tuple[TaskView, ...]:
    """The views of these tasks, in two statements (one where there are none). A row that can not be read
    waits, and is logged: it stops no other (RECOV-05)."""
    texts = as_text(*_TASK_JSON)
    rows = list(tasks.annotate(**texts).order_by("pk").values_list(*_TASK, *texts))
    groups = _read_groups({row[4] for row in rows}) if rows else {}
    views = []
    for row in rows:
        try:
            views.append(_view(row[: len(_TASK)], row[len(_TASK) :], groups[row[4]]))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            log.exception("task row %s can not be read for placing; it waits, the others go on", row[0])
    return tuple(views)


def view_of(task: Task) -> TaskView:
    """The view of a task that need not be written; its row id must differ from all that are."""
    texts = tuple(json.dumps(getattr(task, name)) for name in _TASK_JSON)
    return _view(attrgetter(*_TASK)(task), texts, _group(attrgetter(*_GROUP, *_GROUP_JSON)(task.group)))


def _read_groups(ids: Iterable[int]) -> dict[int, _Group]:
    found = {}
    texts = as_text(*_GROUP_JSON)
    rows = TaskGroup.objects.filter(pk__among=ids).annotate(**texts).order_by()
    for *row, labels, templates in rows.values_list(*_GROUP, *texts):
        try:
            found[row[0]] = _group((*row, parsed(labels), parsed(templates)))
        except (TypeError, ValueError):
            log.exception("group row %s can not be read for placing; its tasks wait", row[0])
    return found


def _group(row: tuple[Any, ...]) -> _Group:
    pk, tenant_id, priority, task_type, *rest = row
    return _Group(pk, tenant_id, priority, TaskType(task_type), *rest)


def _view(row: tuple[Any, ...], texts: tuple[str, ...], group: _Group) -> TaskView:
    pk, public_id, version, created_at, group_id, rank, generation, gpu_required, gpu_type = row[:9]
    memory_mb, engine, template_index, image, attempt, not_before, model_path, made_room_at = row[9:]
    node_refusals, command, ports, volumes = texts
    own = Template(image, engine, _command(command), gpu_type)
    runs = pick(own, group.templates, template_index) if template_index else own
    wanted = _ports(ports)
    staged = group.is_pipeline
    return TaskView(
        id=pk,
        public_id=public_id,
        version=version,
        tenant_id=group.tenant_id,
        group_id=group_id,
        priority=group.priority,
        created_at=created_at,
        task_type=group.task_type,
        gpu_required=gpu_required,
        gpu_type=runs.gpu_type,
        memory_mb=memory_mb,
        percent=group.percent,
        engine=group.engine(runs),
        has_command=bool(runs.command),
        ports=ports_of_stage(wanted, rank) if staged else wanted,
        attempt=attempt,
        not_before=not_before,
        refused_by=_names(node_refusals),
        rank=rank,
        image=runs.image,
        model_path=model_path,
        volumes=_host_paths(volumes, model_path),
        counted=bool(wanted),
        preemptible=group.preemptible,
        host_network=staged,
        gang=gang_of(group_id, generation) if staged else "",
        gang_size=max(1, group.world_size // max(1, gpu_required)) if staged else 1,
        may_borrow=group.task_type == TaskType.TRAINING and gpu_required > 0,
        made_room_at=made_room_at,
    )


def gang_of(group_id: int, generation: int) -> str:
    """What tasks that stand together are known by: the stages of one pipeline."""
    return f"{group_id}.{generation}"


# Of many tasks most have the same of these: each text is taken apart once.


@lru_cache(maxsize=4096)
def _command(text: str) -> tuple[str, ...]:
    return tuple(parsed(text))


@lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    return frozenset(parsed(text))


@lru_cache(maxsize=4096)
def _ports(text: str) -> tuple[tuple[int, int], ...]:
    return tuple((int(port["container_port"]), int(port.get("host_port") or 0)) for port in parsed(text))


@lru_cache(maxsize=4096)
def _host_paths(volumes: str, model_path: str) -> tuple[str, ...]:
    return host_paths(parsed(volumes), model_path)
