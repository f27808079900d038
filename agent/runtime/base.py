"""What a runtime does for the supervisor, whichever it is (AGENT-03).

Owns the Protocol that the process runtime and the Docker runtime fill. A runtime never decides
whether anything should run: it is told. No call waits for anything slow: what takes long goes on
beside, and the same call asked again tells how far it is.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from agent.contract.codes import Reason
from agent.contract.messages import CardReport, EngineReport, TaskSpec
from agent.contract.states import Phase, RuntimeKind


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


class KeptLost(Exception):
    """What was kept can not be started again, for the reason given: only a new one can be made."""


class Kept(StrEnum):
    """What became of an instance that was stopped to be started again."""

    LIES = "lies"  # as it was left, as far as is known
    RUNS = "runs"  # somebody else started it
    GONE = "gone"  # somebody else removed it


class Instance(msgspec.Struct, frozen=True):
    """A started container or process. `name` is the runtime's own handle for it."""

    task_id: str
    attempt: int
    name: str
    host_ports: list[int]


class Starting(msgspec.Struct, frozen=True):
    """A start that is under way: `phase` is pulling or creating, or none where that is not known yet."""

    phase: Phase


class Exit(msgspec.Struct, frozen=True):
    """An instance that has ended. `exit_code` None where it could not be read; 128 + N for signal
    N, as containers have it. `vanished`: somebody else removed it."""

    exit_code: int | None
    out_of_memory: bool = False
    vanished: bool = False


class Adopted(msgspec.Struct, frozen=True):
    """An instance that was there before this run of the agent. `spec` holds what watching it needs;
    `age_s` is how long ago it was started; `stopped`: it runs no more."""

    instance: Instance
    spec: TaskSpec
    age_s: float
    stopped: bool = False


class Runtime(Protocol):
    """Starts, watches and ends instances. The calls may be repeated at any moment."""

    kind: RuntimeKind
    outlives_agent: bool  # whether instances run on without the agent, to be adopted by its next run

    def answers(self) -> bool:
        """Whether it can say now what runs. While it cannot, nothing is concluded from silence."""
        ...

    def adoptable(self) -> list[Adopted]:
        """Instances of this agent that nobody started through this runtime; each is told once."""
        ...

    def probe_engines(self, cards: list[CardReport] | None) -> list[EngineReport]:
        """Engines that this node can run now; `cards` None when they are unknown."""
        ...

    def engine_images(self) -> list[str] | None:
        """Images of engines that lie here, by name:tag; None where it runs none."""
        ...

    def clean_left_overs(self) -> list[str]:
        """At the agent's start: end or adopt what an earlier run left. Returns names, for the log."""
        ...

    def start(self, spec: TaskSpec) -> Instance | Starting:
        """Start one attempt; called from the main thread. `Starting`: ask again. Raises StartRefused
        or PortBusy."""
        ...

    def abandon(self, task_id: str, attempt: int) -> bool:
        """Give up a start that is under way. True when nothing of it is left; False: ask again."""
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

    def keep(self, instance: Instance) -> None:
        """It has ended and is to be started again some day (SLEEP-01): drop nothing of it."""
        ...

    def kept(self, instance: Instance) -> Kept:
        """What became of it since `keep`."""
        ...

    def restart(self, instance: Instance, spec: TaskSpec) -> Instance | Starting:
        """Start again what was kept; `Starting`: ask again. Raises PortBusy, KeptLost or StartRefused."""
        ...

    def forget(self, instance: Instance, *, again: bool = False) -> None:
        """Drop an ended instance and what is known of it. `again`: the same attempt may be started anew,
        and its log then goes on behind what is there."""
        ...

    def close(self, wait_s: float) -> None:
        """The agent ends: finish what is under way, at most so many seconds."""
        ...

    def log_file(self, task_id: str, attempt: int) -> Path:
        """Where the attempt's output is, whole from its first byte; may not exist yet."""
        ...
