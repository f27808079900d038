"""Forms of deployment: parallelism, world_size and replicas (PAR-01)."""

from dataclasses import dataclass

from agent.contract.states import Parallelism
from apps.core.bodies import Fields

# Named by PAR-01 but not run by this version; refused early and by name.
NOT_YET = ("pd", "ring")
OFFERED = tuple(Parallelism)
REPLICAS_LIMIT = 1024
MAX_REPLICAS_LIMIT = 10_000


FEWEST_STAGES = 2


@dataclass(frozen=True)
class Form:
    """`replicas` is how many tasks start; of a pipeline they are its stages, and together one replica."""

    parallelism: Parallelism
    world_size: int
    replicas: int
    min_replicas: int
    max_replicas: int


def read_form(fields: Fields, task: Fields, gpu_required: int, *, known: bool) -> Form:
    """single and tensor_parallel: one replica, world_size = gpu_required; split: world_size replicas;
    pipeline_parallel: one replica of stages, world_size = stages x gpu_required.

    A service without cards may say world_size 1: one worker (PAR-01 counts cards). `known` False =
    gpu_required itself was wrong, so nothing is measured by it.
    """
    parallelism = _read_parallelism(fields)
    world_size = fields.integer("world_size", 0, REPLICAS_LIMIT)
    if parallelism is Parallelism.PIPELINE_PARALLEL:
        stages = _read_stages(fields, task, world_size, gpu_required, known=known)
        low, high = _read_replicas(fields, 1)
        return Form(parallelism, stages * gpu_required, stages, low, high)
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


def _read_stages(fields: Fields, task: Fields, world_size: int | None, gpus: int, *, known: bool) -> int:
    """How many containers a pipeline has. Without world_size nobody could tell."""
    if gpus == 0:
        if known:
            task.refuse("gpu_required", "out_of_range", 0, min=1, max=64)
        return FEWEST_STAGES
    if not fields.sent("world_size"):
        fields.refuse("world_size", "required")
    elif known and world_size is not None and (world_size % gpus or world_size < FEWEST_STAGES * gpus):
        expected = f"n x task.gpu_required = n x {gpus}, n >= {FEWEST_STAGES}"
        parallelism = Parallelism.PIPELINE_PARALLEL.value
        fields.refuse(
            "world_size", "world_size_mismatch", world_size, parallelism=parallelism, expected=expected
        )
    return max(FEWEST_STAGES, (world_size or 0) // gpus)


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
