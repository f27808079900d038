"""Forms of deployment: parallelism, world_size and replicas (PAR-01)."""

from dataclasses import dataclass

from agent.contract.states import Parallelism
from apps.core.bodies import Fields

# Named by PAR-01 but not run by this version; refused early and by name.
NOT_YET = ("pipeline_parallel", "pd", "ring")
OFFERED = (Parallelism.SINGLE, Parallelism.TENSOR_PARALLEL, Parallelism.SPLIT)
REPLICAS_LIMIT = 1024
MAX_REPLICAS_LIMIT = 10_000


@dataclass(frozen=True)
class Form:
    parallelism: Parallelism
    world_size: int
    replicas: int
    min_replicas: int
    max_replicas: int


def read_form(fields: Fields, task: Fields, gpu_required: int, *, known: bool) -> Form:
    """single and tensor_parallel: one replica, world_size = gpu_required; split: world_size replicas.

    A service without cards may say world_size 1: one worker (PAR-01 counts cards). `known` False =
    gpu_required itself was wrong, so nothing is measured by it.
    """
    parallelism = _read_parallelism(fields)
    world_size = fields.integer("world_size", 0, REPLICAS_LIMIT)
    if parallelism is Parallelism.SPLIT:
        replicas = 1 if world_size is None else world_size
        if replicas < 1:
            fields.refuse("world_size", "out_of_range", world_size, min=1, max=REPLICAS_LIMIT)
            replicas = 1
        world_size = replicas
    else:
        replicas = 1
        if parallelism is Parallelism.TENSOR_PARALLEL and gpu_required == 0:
            task.refuse("gpu_required", "out_of_range", 0, min=1, max=64)
            known = False
        fits = {gpu_required} if gpu_required else {0, 1}
        if world_size is None:
            world_size = gpu_required
        elif known and parallelism is not None and world_size not in fits:
            fields.refuse(
                "world_size",
                "world_size_mismatch",
                world_size,
                parallelism=parallelism.value,
                expected=f"task.gpu_required = {gpu_required}",
            )
    low, high = _read_replicas(fields, replicas)
    return Form(parallelism or Parallelism.SINGLE, world_size, replicas, low, high)


def _read_parallelism(fields: Fields) -> Parallelism | None:
    """None where it is wrong, so that the rules that hang on it are not checked as well."""
    if not fields.sent("parallelism") or fields.body["parallelism"] == "":
        return Parallelism.SINGLE
    value = fields.body["parallelism"]
    if value in NOT_YET:
        fields.refuse("parallelism", "not_yet_offered", value, offered=", ".join(OFFERED))
        return None
    chosen = fields.choice("parallelism", OFFERED)
    return Parallelism(chosen) if chosen else None


def _read_replicas(fields: Fields, replicas: int) -> tuple[int, int]:
    low = fields.integer("min_replicas", 0, MAX_REPLICAS_LIMIT)
    high = fields.integer("max_replicas", 1, MAX_REPLICAS_LIMIT)
    if low is not None and high is not None and low > high:
        fields.refuse("min_replicas", "replicas_order", low, max=high)
    elif low is not None and low > replicas:
        fields.refuse("min_replicas", "out_of_range", low, min=0, max=replicas)
    elif high is not None and high < replicas:
        fields.refuse("max_replicas", "out_of_range", high, min=replicas, max=MAX_REPLICAS_LIMIT)
    return (
        min(1, replicas) if low is None else low,
        replicas if high is None else high,
    )
