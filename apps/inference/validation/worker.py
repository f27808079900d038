"""The `task` object of a request, and fields that only look as if they could be set (SVC-02)."""

import dataclasses

from django.utils.translation import gettext as _

from apps.catalog.images import read_image
from apps.catalog.names import NAME_LIMIT
from apps.core.bodies import Fields
from apps.inference.validation.environment import (
    read_command,
    read_env,
    read_pull_credentials,
    read_volumes,
)
from apps.inference.validation.ports import read_ports
from apps.inference.validation.spec import WorkerSpec

_ALSO_ON_GROUPS = {"name"}
TASK_ONLY = frozenset(field.name for field in dataclasses.fields(WorkerSpec)) - _ALSO_ON_GROUPS
_MAY_HOLD_SECRETS = frozenset({"env", "command", "pull_credentials"})
MAX_SECONDS = 366 * 86400
MAX_MEMORY_MB = 100_000_000


def read_worker(fields: Fields) -> WorkerSpec:
    """What each task runs. Whether the engine is one that exists is checked by `engines.py`."""
    refuse_closed(fields)
    gpus = fields.integer("gpu_required", 0, 64, 1)
    worker = WorkerSpec(
        name=fields.text("name", limit=NAME_LIMIT),
        image=read_image(fields),
        gpu_required=1 if gpus is None else gpus,
        gpu_type=fields.text("gpu_type", limit=100),
        engine=fields.text("engine", limit=30),
        model_path=fields.text("model_path", limit=1000),
        ports=read_ports(fields),
        env=read_env(fields),
        volumes=read_volumes(fields),
        command=read_command(fields),
        kv_offload_gb=fields.integer("kv_offload_gb", 1, 4096),
        estimated_gpu_memory_mb=fields.integer("estimated_gpu_memory_mb", 1, MAX_MEMORY_MB),
        timeout_seconds=fields.integer("timeout_seconds", 1, MAX_SECONDS),
        pull_credentials=read_pull_credentials(fields),
    )
    fields.close()
    return worker


def refuse_closed(fields: Fields) -> None:
    """co_schedule and qos are refused wherever they stand, whatever their value (SVC-11, SHARE-03)."""
    if "co_schedule" in fields.body:
        fields.known.add("co_schedule")
        fields.refuse("co_schedule", "co_schedule_closed", fields.body["co_schedule"])
    for name in ("qos", "qos_class", "qos_level"):
        if name in fields.body:
            fields.known.add(name)
            why = _("it follows from the card's hardware (MIG gold, MPS silver, else bronze).")
            fields.refuse(name, "not_offered", fields.body[name], why=why)


def refuse_misplaced(fields: Fields) -> None:
    """Task fields at the top level are named together with where they belong (SVC-02)."""
    for name in sorted(TASK_ONLY & fields.body.keys()):
        fields.known.add(name)
        value = None if name in _MAY_HOLD_SECRETS else fields.body[name]
        fields.refuse(name, "field_belongs_in_task", value)
