"""A creation request after all checks, with every default filled in."""

from dataclasses import dataclass, field
from typing import Any

from agent.contract.states import Parallelism, TaskType


@dataclass(frozen=True)
class WorkerSpec:
    """What each task of the group runs. `ports` are {container_port, host_port}, host_port 0 = from
    the node's pool (SVC-04); `pull_credentials` is secret and rests encrypted."""

    image: str
    name: str = ""
    gpu_required: int = 1
    gpu_type: str = ""
    engine: str = ""
    model_path: str = ""
    ports: list[dict[str, int]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    kv_offload_gb: int | None = None
    estimated_gpu_memory_mb: int | None = None
    timeout_seconds: int | None = None
    pull_credentials: dict[str, str] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ServiceSpec:
    """The group. `replicas` is how many tasks start; `tenant` the slug that was named, if any."""

    tenant: str
    name: str
    model_name: str
    task_type: TaskType
    parallelism: Parallelism
    world_size: int
    replicas: int
    min_replicas: int
    max_replicas: int
    enable_api: bool
    idle_timeout_minutes: int
    gpu_memory_utilization: int | None
    priority: int
    preemptible: bool
    lend: str
    labels: dict[str, str]
    health_check: dict[str, Any]
    scale_policy: dict[str, Any]
    schedule_window: dict[str, Any]
    inference_templates: list[dict[str, Any]]
    worker: WorkerSpec

    @property
    def serves(self) -> bool:
        """Whether callers reach it by a model name, so that it gets a route (SVC-01)."""
        return self.task_type is TaskType.INFERENCE or self.enable_api

    @property
    def gpus(self) -> int:
        """Cards that all its tasks ask for together."""
        return self.worker.gpu_required * self.replicas
