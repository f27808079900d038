"""How a task's container is made: Docker's parameters as plain values (AGENT-03, -06, -15, -18). Pure.

Owns the walls: no capability, no new privileges, never privileged, no host network but a pipeline stage's,
ports on loopback only, limits for memory, processors and process ids, bounded logs. Never talks to Docker.
"""

from __future__ import annotations

from typing import Any

import msgspec
from docker.types import Mount

from agent.config import Settings, TpIpc
from agent.contract.messages import TaskSpec
from agent.contract.states import TaskType
from agent.engines.base import Engine, EngineCall, ImageCommand
from agent.engines.environment import (
    AGENT_VARIABLES,
    DEV_MODE_VARIABLE,
    agent_env,
    stage_env,
    user_env,
)
from agent.gpu.container_cards import ContainerCards
from agent.models.mounts import HostMount

SHARED_MEMORY_BYTES = 16 << 30  # more than one card (AGENT-06); Docker ignores it under host IPC
INSIDE_HOST = "0.0.0.0"  # noqa: S104 - inside the container's own network
MB = 1 << 20


class Creation(msgspec.Struct, frozen=True):
    """Everything that a container is made from."""

    name: str
    image: str
    entrypoint: list[str] | None
    command: list[str] | None
    env: dict[str, str]
    labels: dict[str, str]
    ports: list[tuple[int, str, int]]  # container port, host address, host port
    mounts: list[HostMount]
    cards: ContainerCards
    memory_bytes: int
    cpus: float
    pids: int
    shm_bytes: int | None
    host_ipc: bool
    host_network: bool
    user: str
    log_file_mb: int
    log_files: int


def image_of(spec: TaskSpec, engine: Engine | None) -> str:
    """The image of an attempt: its own, else the engine's for its vendor; "" where there is none."""
    if spec.image or engine is None:
        return spec.image
    return engine.images.get(spec.gpu_vendor or "cpu", "")


def build_command(
    spec: TaskSpec, engine: Engine | None, *, model: str, threads: int, engine_host: str
) -> ImageCommand:
    """What runs inside: the task's own command, else the engine's line; an own image without a command
    keeps its own. A pipeline's stage has no network of its own, so it listens at `engine_host` and its host
    port itself. Raises EngineOptionError."""
    if spec.command:
        return ImageCommand(arguments=list(spec.command))
    if engine is None:
        return ImageCommand(arguments=[])
    port = engine.default_port
    if spec.ports:
        port = spec.ports[0].host_port if spec.stage else spec.ports[0].container_port
    call = EngineCall(
        model_path=model,
        served_model_name=spec.served_model_name,
        host=engine_host if spec.stage else INSIDE_HOST,
        port=port,
        gpu_count=len(spec.gpu_uuids),
        gpu_vendor=spec.gpu_vendor,
        tensor_parallel=spec.tensor_parallel,
        memory_percent=spec.memory_percent,
        threads=threads if engine.name == "llamacpp" else None,
        options={name: value for name, value in spec.env.items() if name in engine.option_variables},
        sleep_enabled=spec.sleep_enabled,
        stage=spec.stage,
    )
    return engine.image_command(call)


def build_env(
    spec: TaskSpec, engine: Engine | None, cards: ContainerCards, *, interface: str = ""
) -> dict[str, str]:
    """The container's environment: the user's entries below the agent's (AGENT-04, AGENT-17). `interface`:
    the one that bears this node's address, for a pipeline's stage."""
    kept, _ = user_env(spec.env)
    staged: dict[str, str] = {}
    if spec.stage is not None:
        port = spec.ports[0].host_port if spec.ports else 0
        usual, staged = stage_env(spec.stage, port=port, interface=interface)
        kept = {**usual, **kept}
    own = {"HETEROFLOW_TASK_ID": spec.task_id, "HETEROFLOW_ATTEMPT": str(spec.attempt)}
    if engine is not None:
        named = agent_env(
            engine,
            task_id=spec.task_id,
            attempt=spec.attempt,
            gpu_vendor="",
            gpu_uuids=[],
            engine_key=spec.engine_key,
            sleep_enabled=spec.sleep_enabled,
        )
        left = AGENT_VARIABLES - {DEV_MODE_VARIABLE}
        own |= {name: value for name, value in named.items() if name not in left}
    return {**kept, **own, **staged, **cards.env}


def build_creation(
    spec: TaskSpec,
    engine: Engine | None,
    settings: Settings,
    *,
    command: ImageCommand,
    mounts: list[HostMount],
    cards: ContainerCards,
    labels: dict[str, str],
    host_memory_mb: int,
    interface: str = "",
) -> Creation:
    """All parameters of one attempt's container."""
    memory_mb = settings.memory_limit_mb or host_memory_mb * 9 // 10
    several = len(spec.gpu_uuids) > 1
    inference = spec.task_type is TaskType.INFERENCE
    staged = spec.stage is not None
    host_ipc = staged or (several and inference and settings.tp_ipc is TpIpc.HOST)
    ports = [] if staged else spec.ports
    return Creation(
        name=spec.task_id,
        image=image_of(spec, engine),
        entrypoint=command.entrypoint,
        command=command.arguments or None,
        env=build_env(spec, engine, cards, interface=interface),
        labels=labels,
        ports=[(port.container_port, settings.engine_host, port.host_port) for port in ports],
        mounts=[*mounts, *(HostMount(path, path) for path in cards.read_only_files)],
        cards=cards,
        memory_bytes=memory_mb * MB,
        cpus=settings.cpu_limit,
        pids=settings.pids_limit,
        shm_bytes=SHARED_MEMORY_BYTES if several and not host_ipc else None,  # the host has its own
        host_ipc=host_ipc,
        host_network=staged,
        user=settings.container_user,
        log_file_mb=settings.log_file_mb,
        log_files=settings.log_files,
    )


def host_config(made: Creation, *, pass_cards: bool = True) -> dict[str, Any]:
    """Arguments of the SDK's `create_host_config`. `pass_cards` False leaves device parameters out."""
    config: dict[str, Any] = {
        "port_bindings": {f"{inside}/tcp": [(host, port)] for inside, host, port in made.ports},
        "network_mode": "host" if made.host_network else made.name,  # its own network bears its name
        "ipc_mode": "host" if made.host_ipc else "private",
        "privileged": False,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": made.memory_bytes,
        "memswap_limit": made.memory_bytes,
        "pids_limit": made.pids,
        "restart_policy": {"Name": "no"},
        "log_config": {
            "Type": "json-file",
            "Config": {"max-size": f"{made.log_file_mb}m", "max-file": str(made.log_files)},
        },
    }
    if made.cpus:
        config["nano_cpus"] = round(made.cpus * 1e9)
    if made.shm_bytes is not None:
        config["shm_size"] = made.shm_bytes
    if pass_cards and made.cards.device_ids:
        config["device_requests"] = [
            {"Driver": "", "Count": 0, "DeviceIDs": made.cards.device_ids, "Capabilities": [["gpu"]]}
        ]
    if pass_cards and made.cards.devices:
        config["devices"] = [f"{device}:{device}:rwm" for device in made.cards.devices]
        config["group_add"] = made.cards.groups
    if pass_cards and made.cards.runtime:
        config["runtime"] = made.cards.runtime
    return config


def bind_mounts(made: Creation) -> list[Mount]:
    """As Mount and never as `volumes`: that form makes an empty folder where the source is absent."""
    return [
        Mount(target=m.target, source=m.source, type="bind", read_only=m.read_only, propagation="rprivate")
        for m in made.mounts
    ]
