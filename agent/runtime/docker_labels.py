"""Labels by which containers and networks of this agent are known (AGENT-09). Pure.

Owns what is written on a container so that the next run of the agent can take it over without asking
anybody: which attempt it is, its ports and its health check. No secret stands in a label.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from agent.contract.messages import HealthCheck, PortMapping, TaskSpec
from agent.contract.states import TaskType
from agent.engines.catalog import get_engine
from agent.engines.environment import DEV_MODE_VARIABLE

AGENT = "heteroflow.agent"  # the agent that made it; another agent's is never touched
NODE = "heteroflow.node"  # for people
TASK = "heteroflow.task"
ATTEMPT = "heteroflow.attempt"
SERVING = "heteroflow.serving"
SOURCES = "heteroflow.sources"  # place inside -> real host path, of each mount: for starting it again
TASK_NAME = re.compile(r"task-[A-Za-z0-9_-]{1,80}\Z")


class Serving(msgspec.Struct, frozen=True):
    """What a container is watched by."""

    engine: str
    served_model_name: str
    ports: list[PortMapping]
    health_check: HealthCheck
    gpu_uuids: list[str] = []
    gpu_vendor: str = ""
    task_type: TaskType = TaskType.INFERENCE


class Found(msgspec.Struct, frozen=True):
    """One container of this agent as Docker lists it."""

    container: str  # Docker's id
    name: str
    task_id: str
    attempt: int
    state: str  # created, running, paused, restarting, removing, exited, dead
    serving: str = ""


def build_labels(spec: TaskSpec, *, agent: str, node: str) -> dict[str, str]:
    """The labels of an attempt's container."""
    serving = Serving(
        engine=spec.engine,
        served_model_name=spec.served_model_name,
        ports=spec.ports,
        health_check=spec.health_check,
        gpu_uuids=spec.gpu_uuids,
        gpu_vendor=spec.gpu_vendor,
        task_type=spec.task_type,
    )
    return {
        AGENT: agent,
        NODE: node,
        TASK: spec.task_id,
        ATTEMPT: str(spec.attempt),
        SERVING: msgspec.json.encode(serving).decode(),
    }


def read_listed(row: dict[str, Any], agent: str) -> Found | None:
    """A row of Docker's list; None unless it is this agent's and both name and labels are in form."""
    labels = row.get("Labels") or {}
    names = [str(name).lstrip("/") for name in row.get("Names") or []]
    task, attempt = str(labels.get(TASK, "")), str(labels.get(ATTEMPT, ""))
    if labels.get(AGENT) != agent or not TASK_NAME.match(task) or task not in names:
        return None
    if not attempt.isascii() or not attempt.isdigit() or len(attempt) > 9:
        return None
    return Found(
        container=str(row["Id"]),
        name=task,
        task_id=task,
        attempt=int(attempt),
        state=str(row.get("State", "")),
        serving=str(labels.get(SERVING, "")),
    )


def spec_of(found: Found, env: list[str]) -> TaskSpec:
    """What can be known of a running container's spec: from its labels, and its key and secrets from
    its own environment. Model path and image are not among it; they are not needed any more."""
    try:
        serving = msgspec.json.decode(found.serving.encode(), type=Serving)
    except msgspec.DecodeError:  # made by another version: watched as a plain container
        serving = Serving(engine="", served_model_name="", ports=[], health_check=HealthCheck(type="none"))
    entries = dict(entry.partition("=")[::2] for entry in env)
    engine = get_engine(serving.engine)
    return TaskSpec(
        task_id=found.task_id,
        attempt=found.attempt,
        task_type=serving.task_type,
        image="",
        engine=serving.engine,
        served_model_name=serving.served_model_name,
        model_path="",
        ports=serving.ports,
        health_check=serving.health_check,
        gpu_uuids=serving.gpu_uuids,
        gpu_vendor=serving.gpu_vendor,
        env=entries,
        engine_key=entries.get(engine.key_variable, "") if engine else "",
        sleep_enabled=entries.get(DEV_MODE_VARIABLE) == "1",
    )
