"""States, phases and kinds that server and agent share.

Owns the vocabulary only; the table of allowed moves is `apps/workloads/state.py` (LIFE-02).
"""

from enum import StrEnum


class State(StrEnum):
    """State of a task or a task group (LIFE-01). `scheduling` means placed, not yet ready."""

    PENDING = "pending"
    SCHEDULING = "scheduling"
    RUNNING = "running"
    SLEEPING = "sleeping"
    WAKING = "waking"
    DRAINING = "draining"
    STOPPING = "stopping"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class Phase(StrEnum):
    """Where inside its state a placed task is, as its agent reports it (LIFE-08)."""

    NONE = ""
    PLACED = "placed"
    CLAIMED = "claimed"
    PULLING = "pulling"
    CREATING = "creating"
    LOADING = "loading"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    LEAVING = "leaving"


class Desired(StrEnum):
    """What is wanted of a task. An agent is told `run` or `stop` for an attempt; `sleep` rests in rows only,
    and goes over the wire as `stop` with a SleepOrder."""

    RUN = "run"
    SLEEP = "sleep"
    STOP = "stop"


class TaskType(StrEnum):
    """What a group is for; authoritative (SVC-03)."""

    INFERENCE = "inference"
    TRAINING = "training"
    CONTAINER = "container"


class Parallelism(StrEnum):
    """Forms of deployment (PAR-01)."""

    SINGLE = "single"
    TENSOR_PARALLEL = "tensor_parallel"
    SPLIT = "split"
    PIPELINE_PARALLEL = "pipeline_parallel"


class FileKind(StrEnum):
    """What a request for files asks for (AGENT-12)."""

    LIST = "list"
    DOWNLOAD = "download"


class RuntimeKind(StrEnum):
    """How an agent runs engines (AGENT-03)."""

    PROCESS = "process"
    DOCKER = "docker"


class Observed(StrEnum):
    """What an agent sees of one attempt on its node."""

    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    EXITED = "exited"
    GONE = "gone"
    ASLEEP = "asleep"  # stopped by a SleepOrder, its container kept for the wake (SLEEP-01)
