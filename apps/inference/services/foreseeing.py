"""What can be told of a service before it is made: its rows, its memory, whether it could ever stand
anywhere, and what its people should know (SVC-09, SCHED-05, -07, -13, -16).

Reads only, writes nothing: a creation begins with it, a dry run is little more (SVC-15).
"""

import json
from dataclasses import fields, replace
from datetime import datetime
from typing import Any

from agent.contract.codes import Code
from agent.contract.states import Parallelism, TaskType
from apps.catalog.estimates import estimate_mb
from apps.core.errors import Invalid
from apps.fleet.selectors import card_kinds
from apps.inference.policy.fitting import CardKind, find_misfits
from apps.inference.validation import ServiceSpec
from apps.scheduling.selectors import reserve, view_of
from apps.tenants.models import Tenant
from apps.workloads.models import Task
from apps.workloads.selectors import choose_engine
from apps.workloads.services import rows_of_group


def foresee(tenant: Tenant, spec: ServiceSpec, now: datetime) -> ServiceSpec:
    """The same with its memory estimated where nobody told it. Raises Invalid for what can never fit on the
    cards that the tenant may use, with the numbers."""
    told = spec.worker.estimated_gpu_memory_mb
    spec = replace(
        spec, worker=replace(spec.worker, estimated_gpu_memory_mb=told if told else _estimate(spec))
    )
    misfits = find_misfits(
        view_of(would_be_tasks(tenant, spec, now)[0]),
        spec.parallelism,
        {tuple(CardKind(*card) for card in kind) for kind in card_kinds(tenant.pk)},
        reserve(),
        estimated=told is None,
    )
    if misfits:
        raise Invalid(misfits)
    return spec


def _estimate(spec: ServiceSpec) -> int | None:
    """MB of one task: a pipeline's stages share the weights, other replicas have them whole."""
    worker = spec.worker
    parts = spec.replicas if spec.parallelism is Parallelism.PIPELINE_PARALLEL else 1
    engine = choose_engine(worker.engine, spec.labels, worker.image)
    whole = estimate_mb(worker.model_path, engine=engine, cards=worker.gpu_required * parts)
    return None if whole is None else -(-whole // parts)


def find_warnings(spec: ServiceSpec) -> list[Code]:
    """What its people should mend or know; it stops nothing."""
    worker, found = spec.worker, []
    if spec.enable_api and not worker.ports:
        found.append(Code.ENDPOINT_WITHOUT_PORT)
    if spec.serves and not worker.ports:
        found.append(Code.NOT_COUNTED_ON_CARD)
    on_cards = spec.task_type is TaskType.INFERENCE and worker.model_path and worker.gpu_required
    if on_cards and worker.estimated_gpu_memory_mb is None:
        found.append(Code.ESTIMATE_SKIPPED)
    return found


def would_be_tasks(tenant: Tenant, spec: ServiceSpec, now: datetime) -> list[Task]:
    """The tasks that a creation would write, unwritten: their row ids are below zero, where none is,
    and in the order of ranks."""
    group, tasks = rows_of_group(
        tenant=tenant,
        group_fields=group_fields(spec),
        task_fields=task_fields(spec),
        replicas=spec.replicas,
        now=now,
    )
    group.pk = -1
    for task in tasks:
        task.pk, task.group = task.rank - spec.replicas, group
    return tasks


def group_fields(spec: ServiceSpec) -> dict[str, Any]:
    """All of the request that the group's columns keep under the same names."""
    names = {field.name for field in fields(spec)} - {"tenant", "replicas", "worker"}
    return {name: getattr(spec, name) for name in names}


def task_fields(spec: ServiceSpec) -> dict[str, Any]:
    """The same for its tasks; the credentials as the text that rests encrypted."""
    worker = spec.worker
    secret = json.dumps(worker.pull_credentials) if worker.pull_credentials else ""
    return {field.name: getattr(worker, field.name) for field in fields(worker)} | {
        "pull_credentials": secret
    }
