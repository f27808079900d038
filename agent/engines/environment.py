"""Environment of an engine: which entries of the user are kept, which are the agent's (AGENT-04).

Owns the rules as pure functions, for every runtime. Never reads this process's own environment.
"""

from __future__ import annotations

import re

from agent.contract.messages import PipelineStage
from agent.engines.base import Engine

VISIBILITY_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "MTHREADS_VISIBLE_DEVICES",
        "MUSA_VISIBLE_DEVICES",
        "ZE_AFFINITY_MASK",
    }
)
IDENTITY_VARIABLES = frozenset(
    {
        "HETEROFLOW_TASK_ID",
        "HETEROFLOW_ATTEMPT",
        "HETEROFLOW_AGENT_PID",
        "TASK_ID",
        "TASK_GROUP_ID",
        "NODE_ID",
    }
)
DEV_MODE_VARIABLE = "VLLM_SERVER_DEV_MODE"
AGENT_VARIABLES = VISIBILITY_VARIABLES | IDENTITY_VARIABLES | {DEV_MODE_VARIABLE}

_VISIBILITY_BY_VENDOR = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "HIP_VISIBLE_DEVICES",
    "hygon": "HIP_VISIBLE_DEVICES",
    "ascend": "ASCEND_RT_VISIBLE_DEVICES",
    "musa": "MUSA_VISIBLE_DEVICES",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def user_env(env: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """What is kept of the user's entries, and the names that were dropped.

    Dropped are the agent's own variables (any case), names that are no names, and values with NUL.
    """
    kept = {
        name: value
        for name, value in env.items()
        if name.upper() not in AGENT_VARIABLES and _NAME.match(name) and "\0" not in value
    }
    return kept, sorted(set(env) - set(kept))


def agent_env(
    engine: Engine,
    *,
    task_id: str,
    attempt: int,
    gpu_vendor: str,
    gpu_uuids: list[str],
    engine_key: str,
    sleep_enabled: bool = False,
) -> dict[str, str]:
    """The variables that the agent alone sets.

    Dev mode opens the sleep routes, so it is set for vLLM's family only, and there only for
    services with sleep enabled (AGENT-04, AGENT-17).
    """
    env = {"HETEROFLOW_TASK_ID": task_id, "HETEROFLOW_ATTEMPT": str(attempt)}
    cards = ",".join(gpu_uuids)
    for vendor, variable in _VISIBILITY_BY_VENDOR.items():
        if vendor == gpu_vendor:
            env[variable] = cards
    if not gpu_uuids:
        env["CUDA_VISIBLE_DEVICES"] = ""  # a task without cards must not find any
    if engine_key:
        env[engine.key_variable] = engine_key
    if sleep_enabled and engine.family == "vllm":
        env[DEV_MODE_VARIABLE] = "1"
    return env


def stage_env(stage: PipelineStage, *, port: int, interface: str) -> tuple[dict[str, str], dict[str, str]]:
    """What a pipeline's stage is told of the others (PAR-03): defaults that the user's own entries may
    replace, and those that are the agent's alone.

    RANK counts stages and WORLD_SIZE cards, as the service has them (PAR-01): with one card a stage that is
    what torch's env:// reads; with several a launcher counts from NODE_RANK, NNODES and NPROC_PER_NODE.
    `port`: where the head has to listen, 0 for the others. `interface`: the one that bears the node's
    address, "" where it is not known.
    """
    usual = {name: interface for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface}
    own = {
        "RANK": stage.rank,
        "WORLD_SIZE": stage.world_size,
        "NODE_RANK": stage.rank,
        "NNODES": stage.stages,
        "NPROC_PER_NODE": stage.world_size // stage.stages,
        "MASTER_ADDR": stage.master_host,
        "MASTER_PORT": stage.master_port,
        "VLLM_HOST_IP": stage.host,
    }
    if port:
        own["PORT"] = port
    return usual, {name: str(value) for name, value in own.items()}
