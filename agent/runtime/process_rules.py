"""What the process runtime runs at all (AGENT-03).

Owns the refusals, as pure functions. A process has no walls round it, so only catalog engines by
our own command lines are started, with the few options that the engine's builder reads.
"""

from __future__ import annotations

import re

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import TaskSpec
from agent.contract.states import Parallelism, TaskType
from agent.engines.base import Engine
from agent.engines.catalog import ENGINE_NAMES

# Those below are the machine's own (ssh, DNS, web): an agent that runs as root could take them.
FIRST_OPEN_PORT = 1024
TASK_ID = re.compile(r"task-[A-Za-z0-9_-]{1,80}\Z")


def refusal(spec: TaskSpec, engine: Engine | None) -> Reason | None:
    """Why this attempt cannot run as a process, None when it can."""
    if not TASK_ID.match(spec.task_id):
        return _cannot("task_id", spec.task_id)
    if spec.task_type is not TaskType.INFERENCE:
        return _cannot("task_type", spec.task_type.value)
    if spec.stage is not None:
        return _cannot("parallelism", Parallelism.PIPELINE_PARALLEL.value)
    if spec.command:
        return _cannot("command", spec.command[0])
    if spec.volumes:
        return _cannot("volumes", spec.volumes[0])
    if engine is None:
        if spec.engine in ENGINE_NAMES:
            return unavailable(spec.engine)
        return _cannot("engine", spec.engine or spec.image)
    if not spec.ports:
        return _cannot("ports", "none")
    if spec.ports[0].host_port < FIRST_OPEN_PORT:
        return _cannot("ports[0].host_port", str(spec.ports[0].host_port))
    return None


def _cannot(field: str, value: str) -> Reason:
    why = f"the process runtime takes no {field} = {value}"
    return reason(Code.START_FAILED, why=why, field=field, value=value)


def unavailable(engine: str) -> Reason:
    """The reason where an engine is known and not installed here."""
    return reason(Code.ENGINE_UNAVAILABLE, engine=engine, why="it is not installed there")


def kept_options(env: dict[str, str], engine: Engine) -> tuple[dict[str, str], list[str]]:
    """The user's entries that the engine's builder reads, and the names of the rest.

    The rest is dropped: in a plain process, LD_PRELOAD or a model path by variable would be a way
    round every check.
    """
    kept = {name: value for name, value in env.items() if name in engine.option_variables}
    return kept, sorted(set(env) - set(kept))
