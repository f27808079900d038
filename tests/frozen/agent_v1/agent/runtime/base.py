"""What a runtime does for the supervisor, whichever it is (AGENT-03).

Owns the Protocol that the process runtime fills now and the Docker runtime will fill. A runtime
never decides whether anything should run: it is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import msgspec

from agent.contract.codes import Reason
from agent.contract.messages import CardReport, EngineReport, TaskSpec
from agent.contract.states import RuntimeKind


class StartRefused(Exception):
    """An attempt that cannot be started here, for the reason given; trying again changes nothing."""

    def __init__(self, why: Reason) -> None:
        super().__init__(f"{why.code}: {why.params}")
        self.reason = why


class PortBusy(Exception):
    """The attempt's port is still held by something else; worth trying again for a while."""

    def __init__(self, port: int) -> None:
        super().__init__(f"port {port} is in use")
        self.port = port


class Instance(msgspec.Struct, frozen=True):
    """A started container or process. `name` is the runtime's own handle for it."""

    task_id: str
    attempt: int
    name: str
    host_ports: list[int]


class Exit(msgspec.Struct, frozen=True):
    """An instance that has ended. `exit_code` None where it could not be read; 128 + N for signal
    N, as containers have it."""

    exit_code: int | None
    out_of_memory: bool = False


class Runtime(Protocol):
    """Starts, watches and ends instances. The calls may be repeated at any moment."""

    kind: RuntimeKind

    def probe_engines(self, cards: list[CardReport] | None) -> list[EngineReport]:
        """Engines that this node can run now; `cards` None when they are unknown."""
        ...

    def clean_left_overs(self) -> list[str]:
        """At the agent's start: end or adopt what an earlier run left. Returns names, for the log."""
        ...

    def start(self, spec: TaskSpec) -> Instance:
        """Start one attempt; called from the main thread. Raises StartRefused or PortBusy."""
        ...

    def poll(self, instance: Instance) -> Exit | None:
        """None while any part of it lives."""
        ...

    def terminate(self, instance: Instance) -> None:
        """Ask it to end."""
        ...

    def kill(self, instance: Instance) -> None:
        """End it, with everything that it started."""
        ...

    def forget(self, instance: Instance) -> None:
        """Drop what is kept about an ended instance."""
        ...

    def log_file(self, task_id: str, attempt: int) -> Path:
        """Where the attempt's output is, whole from its first byte; may not exist yet."""
        ...
