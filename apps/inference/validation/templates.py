"""inference_templates: what is tried, in order, where the engine of `task` does not start (RECOV-03).

Owns the shape of one template. All share the task's environment, model path, mounts and ports.
"""

from typing import Any

from django.utils.translation import gettext as _

from agent.contract.states import TaskType
from agent.engines.catalog import ENGINE_NAMES, ENGINES, engine_from_image
from apps.catalog.images import read_image
from apps.core.bodies import Fields
from apps.inference.validation import engines
from apps.inference.validation.environment import read_command
from apps.inference.validation.spec import WorkerSpec

TEMPLATES_LIMIT = 8
# Its models lie inside its image, so that it can follow no other engine (ENG-03).
NEVER_IN_A_CHAIN = frozenset({"trtllm"})


def read_templates(
    fields: Fields, task: Fields, worker: WorkerSpec, model_name: str, task_type: TaskType
) -> list[dict[str, Any]]:
    """The chain behind the task's own engine, each with its engine named."""
    chain = [
        template
        for item in fields.objects("inference_templates", limit=TEMPLATES_LIMIT)
        if (template := _read_template(item, task, worker, model_name)) is not None
    ]
    if task_type is not TaskType.INFERENCE and fields.body.get("inference_templates"):
        why = _("only inference services have engines to choose from.")
        fields.refuse("inference_templates", "not_offered", None, why=why)
        return []
    return chain


def _read_template(item: Fields, task: Fields, worker: WorkerSpec, model_name: str) -> dict[str, Any] | None:
    before = len(item.errors)
    image, command = read_image(item), read_command(item)
    gpu_type = item.text("gpu_type", limit=100)
    engine = item.choice("engine", ENGINE_NAMES)
    item.close()
    if len(item.errors) > before:
        return None
    engine = engine or engine_from_image(image) or ""
    place = "engine" if item.body.get("engine") else "image"
    offered = ", ".join(ENGINES)
    if engine in NEVER_IN_A_CHAIN:
        item.refuse(place, "not_offered", engine, why=_("its model lies inside its image."))
    elif not engine and not command:
        item.refuse("engine", "engine_not_told", image, offered=offered)
    elif engine not in ENGINES and not command:
        item.refuse(place, "not_yet_offered", engine, offered=offered)
    else:
        engines.check_options(task, worker, engine, model_name, command=command)
    if len(item.errors) > before:
        return None
    return {"image": image, "engine": engine, "command": command, "gpu_type": gpu_type}
