"""What a request means for engines: its type, which engine, and what goes with which (SVC-03, SVC-10).

Owns the rules that span several fields. Never chooses an engine for a node: that needs to know the
node and is done where tasks are placed.
"""

from django.utils.translation import gettext as _

from agent.contract.states import TaskType
from agent.engines.base import EngineCall, EngineOptionError
from agent.engines.catalog import ENGINE_NAMES, ENGINES, engine_from_image
from apps.core.bodies import Fields
from apps.inference.validation.spec import WorkerSpec
from apps.workloads.selectors import ENGINE_LABEL, choose_engine

_VLLM_FAMILY = frozenset({"vllm", "vllm-mtt"})


def read_task_type(fields: Fields, worker: WorkerSpec, enable_api: bool) -> TaskType:
    """Explicit wins; else a model path, enable_api or an engine's image means inference (SVC-03)."""
    chosen = fields.choice("task_type", [kind.value for kind in TaskType])
    if chosen:
        return TaskType(chosen)
    if worker.model_path or enable_api or engine_from_image(worker.image):
        return TaskType.INFERENCE
    return TaskType.CONTAINER


def check_engine(
    group: Fields, task: Fields, worker: WorkerSpec, labels: dict[str, str], task_type: TaskType
) -> str:
    """The engine's name, "" where nothing tells one. An engine that exists by name only is refused
    unless the task brings a command of its own."""
    label = labels.get(ENGINE_LABEL, "")
    for fields, place, name in ((task, "engine", worker.engine), (group, f"labels.{ENGINE_LABEL}", label)):
        if name and name not in ENGINE_NAMES:
            fields.refuse(place, "not_a_choice", name, choices=", ".join(ENGINE_NAMES))
            return ""
    engine = choose_engine(worker.engine, labels, worker.image)
    if engine and engine not in ENGINES and task_type is TaskType.INFERENCE and not worker.command:
        place = "engine" if worker.engine else "image"
        shown = worker.engine or label or worker.image
        task.refuse(place, "not_yet_offered", shown, offered=", ".join(ENGINES))
    named_well = not any(error.field == task.at("image") for error in task.errors)
    if not engine and named_well and task_type is TaskType.INFERENCE and not worker.command:
        # It would start as a plain container with nothing to tell it the model.
        task.refuse("engine", "engine_not_told", worker.image, offered=", ".join(ENGINES))
    return engine


def check_model(task: Fields, worker: WorkerSpec, task_type: TaskType) -> None:
    """An inference service needs a model path or a command of its own (SVC-10)."""
    path = task.body.get("model_path")
    path = path.strip() if isinstance(path, str) else path
    tried = path or task.body.get("command")  # wrong ones are named already
    if task_type is TaskType.INFERENCE and not worker.model_path and not worker.command and not tried:
        task.refuse("model_path", "model_path_or_command")


def check_options(
    task: Fields, worker: WorkerSpec, engine: str, model_name: str, *, command: list[str]
) -> None:
    """Environment entries that the engine's command line reads must be ones that it can carry. A `command` of
    its own reads what it likes."""
    builder = ENGINES.get(engine)
    if builder is None or command:
        return
    call = EngineCall(
        model_path=worker.model_path,
        served_model_name=model_name,
        host="127.0.0.1",
        port=builder.default_port,
        gpu_count=worker.gpu_required,
        options=worker.env,
    )
    try:
        builder.image_command(call)
    except EngineOptionError as error:
        task.refuse(f"env.{error.name}", "bad_engine_option", error.value, rule=error.rule)


def check_offload(task: Fields, group: Fields, worker: WorkerSpec, engine: str, task_type: TaskType) -> None:
    """kv_offload_gb goes with vLLM's own command line only (KV-03); this version has no such flag
    yet, and a value that would do nothing is refused instead."""
    if worker.kv_offload_gb is None:
        return
    whys = []
    if task_type is not TaskType.INFERENCE:
        whys.append(_("only inference services keep a KV cache."))
    if group.body.get("parallelism") == "pipeline_parallel":
        whys.append(_("pipeline_parallel does not go with it."))
    if worker.engine and worker.engine not in _VLLM_FAMILY:
        whys.append(_("it goes with vllm, and the engine is %(engine)s.") % {"engine": worker.engine})
    if worker.command:
        whys.append(_("the flags stand in the engine's command line, and task.command replaces it."))
    for why in whys:
        task.refuse("kv_offload_gb", "not_offered", worker.kv_offload_gb, why=why)
    if not whys:
        task.refuse("kv_offload_gb", "not_yet_offered", worker.kv_offload_gb, offered=_("no kv_offload_gb"))
