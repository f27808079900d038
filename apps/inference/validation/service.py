"""The whole creation request of SVC-02: every field read, every broken rule named at once."""

from dataclasses import replace
from typing import Any

from agent.contract.states import TaskType
from apps.core.bodies import Fields
from apps.core.errors import FieldError, Invalid
from apps.inference.validation import engines, worker
from apps.inference.validation.environment import read_labels
from apps.inference.validation.forms import read_form
from apps.inference.validation.health import read_health_check
from apps.inference.validation.names import read_names
from apps.inference.validation.pipelines import check_pipeline
from apps.inference.validation.ports import DEFAULT_CONTAINER_PORT
from apps.inference.validation.scaling import read_scale_policy, read_schedule_window
from apps.inference.validation.spec import ServiceSpec, WorkerSpec
from apps.inference.validation.templates import read_templates
from apps.workloads.models import Lend

PRIORITY_LIMIT = 1_000_000
IDLE_LIMIT_MINUTES = 366 * 24 * 60


def validate_create(body: dict[str, Any], *, is_operator: bool) -> ServiceSpec:
    """Read a request body. Raises Invalid with one FieldError a broken rule."""
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    worker.refuse_closed(fields)
    worker.refuse_misplaced(fields)
    tenant = fields.text("tenant", limit=50)
    name, model_name = read_names(fields)
    section = fields.section("task")
    if section is None and not fields.sent("task"):
        fields.refuse("task", "required")
    task = section or Fields({}, [], "task")  # whose errors would say no more than "task" does
    wish = worker.read_worker(task)
    labels = read_labels(fields)
    enable_api = fields.boolean("enable_api")
    task_type = engines.read_task_type(fields, wish, enable_api)
    engine = engines.check_engine(fields, task, wish, labels, task_type)
    engines.check_model(task, wish, task_type)
    engines.check_options(task, wish, engine, model_name, command=wish.command)
    engines.check_offload(task, fields, wish, engine, task_type)
    if task_type is TaskType.INFERENCE and wish.model_path:
        enable_api, wish = True, _with_port(wish)
    wrong = {error.field.split("[")[0] for error in errors} | ({"task"} if section is None else set())
    gpus_known = wrong.isdisjoint({"task", "task.gpu_required"})
    ports_known = wrong.isdisjoint({"task", "task.ports"})
    engine_known = not any(name.startswith(("task", "labels")) for name in wrong)
    form = read_form(fields, task, wish.gpu_required, known=gpus_known)
    check_pipeline(fields, wish, engine, task_type, form.parallelism)
    spec = ServiceSpec(
        tenant=tenant,
        name=name,
        model_name=model_name,
        task_type=task_type,
        parallelism=form.parallelism,
        world_size=form.world_size,
        replicas=form.replicas,
        min_replicas=form.min_replicas,
        max_replicas=form.max_replicas,
        enable_api=enable_api,
        idle_timeout_minutes=fields.integer("idle_timeout_minutes", 0, IDLE_LIMIT_MINUTES, 0) or 0,
        gpu_memory_utilization=fields.integer("gpu_memory_utilization", 1, 100),
        priority=_read_priority(fields, is_operator),
        preemptible=fields.boolean("preemptible"),
        lend=fields.choice("lend", Lend.values, Lend.DEFAULT),
        labels=labels,
        health_check=read_health_check(
            fields,
            [mapping["container_port"] for mapping in wish.ports],
            engine=_watched_engine(engine, task_type) if engine_known else None,
            known=ports_known,
        ),
        scale_policy=read_scale_policy(fields),
        schedule_window=read_schedule_window(fields),
        inference_templates=read_templates(fields, task, wish, model_name, task_type),
        worker=wish,
    )
    fields.close()
    if errors:
        raise Invalid(errors)
    return spec


def _watched_engine(engine: str, task_type: TaskType) -> str:
    """The engine by whose own ways a service is watched, "" for none: a training of its is none."""
    return engine if task_type is TaskType.INFERENCE else ""


def _with_port(wish: WorkerSpec) -> WorkerSpec:
    """A model path without any mapping gets container port 8000 (SVC-04)."""
    if wish.ports:
        return wish
    return replace(wish, ports=[{"container_port": DEFAULT_CONTAINER_PORT, "host_port": 0}])


def _read_priority(fields: Fields, is_operator: bool) -> int:
    """0 and above; negative only by operators (SVC-08)."""
    value = fields.body.get("priority")
    low = -PRIORITY_LIMIT
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < 0 and not is_operator:
        fields.known.add("priority")
        fields.refuse("priority", "operators_only", value)
        return 0
    return fields.integer("priority", low if is_operator else 0, PRIORITY_LIMIT, 0) or 0
