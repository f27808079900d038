"""Makes the runtime that the settings name.

Owns the choice; the SDK of Docker is imported only where it is needed.
"""

from __future__ import annotations

from agent.config import Settings
from agent.contract.states import RuntimeKind
from agent.identity import Identity, StateDir
from agent.runtime.base import Runtime
from agent.runtime.process import ProcessRuntime


def make_runtime(settings: Settings, state_dir: StateDir, identity: Identity) -> Runtime:
    """The runtime, at work already where it has threads of its own."""
    if settings.runtime is RuntimeKind.PROCESS:
        return ProcessRuntime(settings, state_dir)
    from agent.runtime.docker_runtime import DockerRuntime

    return DockerRuntime(settings, state_dir, agent=identity.label, node=lambda: identity.node_id)
