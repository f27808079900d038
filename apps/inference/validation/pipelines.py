"""What goes with pipeline_parallel and what does not (PAR-02, PAR-03).

Owns the rules that hang on that form alone; which world_size it takes stands in `forms.py`.
"""

from django.utils.translation import gettext as _

from agent.contract.states import Parallelism, TaskType
from agent.engines.catalog import ENGINES, SINGLE_NODE_ENGINES, chain_of_type
from apps.core.bodies import Fields
from apps.inference.validation.spec import WorkerSpec


def check_pipeline(
    fields: Fields, worker: WorkerSpec, engine: str, task_type: TaskType, parallelism: Parallelism
) -> None:
    """Refuse engines that do not span nodes, and what would tear the stages apart. `engine` is the one that
    is told by task, label or image, "" for none: then the GPU type's chain says where it would end."""
    if parallelism is not Parallelism.PIPELINE_PARALLEL:
        return
    value = parallelism.value
    name = engine or next(iter(chain_of_type(worker.gpu_type)), "")
    builder = ENGINES.get(name)
    closed = name in SINGLE_NODE_ENGINES
    unable = builder is not None and not builder.spans_nodes and not worker.command
    if (closed or unable) and task_type is TaskType.INFERENCE:
        others = ", ".join(one.value for one in Parallelism if one is not parallelism)
        why = _("%(engine)s does not run in stages over several nodes; it takes %(others)s.")
        fields.refuse("parallelism", "not_offered", value, why=why % {"engine": name, "others": others})
    if fields.body.get("inference_templates"):
        why = _("the stages of a pipeline run one engine together, so that there is no chain to try.")
        fields.refuse("inference_templates", "not_offered", None, why=why)
    for name, switched_on in (("scale_policy", "enabled"), ("schedule_window", "enabled")):
        section = fields.body.get(name)
        if not isinstance(section, dict) or section.get(switched_on) is not True:
            continue
        if name == "scale_policy" or section.get("action") == "scale":
            why = _("a pipeline is one replica, however many stages it has.")
            fields.refuse(name, "not_offered", None, why=why)
