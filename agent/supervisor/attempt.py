"""One attempt of a task, as the supervisor remembers it while this agent runs.

Owns the record. Never acts: the other parts of the supervisor move it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum

from agent.contract.codes import Reason
from agent.contract.messages import ClaimAnswer, DesiredTask, SleepOrder, TaskSpec
from agent.contract.states import Observed, Phase
from agent.runtime.base import Instance
from agent.supervisor.desired import Key
from agent.supervisor.health import HealthMonitor, Probe, Work


class Stage(StrEnum):
    """How far this agent is with an attempt."""

    WANTED = "wanted"  # listed, not claimed
    CLAIMING = "claiming"
    STARTING = "starting"  # claim held, not started yet
    RUNNING = "running"
    DRAINING = "draining"  # to sleep, once its callers have their answers
    SLEEP_CALL = "sleep_call"  # the engine itself is being asked to
    STOPPING = "stopping"
    ASLEEP = "asleep"  # stopped, and kept
    WAKING = "waking"  # being started again; RUNNING once it is
    EXITED = "exited"  # ended and reported; the server decides what follows
    GONE = "gone"  # ended as the server wished


STARTED = frozenset({Stage.RUNNING, Stage.DRAINING, Stage.SLEEP_CALL, Stage.STOPPING})
ALIVE = STARTED | {Stage.STARTING, Stage.ASLEEP, Stage.WAKING}


@dataclass
class Attempt:
    """Times are seconds of the supervisor's monotonic clock."""

    task_id: str
    attempt: int
    born_at: float
    stop_grace_s: float
    stage: Stage = Stage.WANTED
    observed: Observed = Observed.STARTING
    claimed: bool = False
    claim: asyncio.Task[ClaimAnswer] | None = None
    claim_after: float = 0.0
    claim_refused_hash: str | None = None
    spec: TaskSpec | None = None
    secrets: list[str] = field(default_factory=list)
    announced: Phase = Phase.CLAIMED  # how far its start was told
    start_after: float = 0.0
    start_pause_s: float = 0.5
    start_deadline: float | None = None
    cards_free: bool = False  # seen so before its start began
    busy_ports: list[int] = field(default_factory=list)  # given up on, in their order
    instance: Instance | None = None
    health: HealthMonitor | None = None
    probe: asyncio.Task[Probe] | None = None
    probe_after: float = 0.0
    log_size: int = 0
    degraded: str = ""
    kill_after: float = 0.0
    ending: Observed = Observed.EXITED  # what is reported once it has ended; asleep: it is kept
    why: Reason | None = None  # why it is being stopped
    told_gone_at: float = 0.0
    sleep: SleepOrder | None = None  # as last listed
    notes: list[Reason] = field(default_factory=list)  # of its sleep, for the report of it
    drain_began_at: float = 0.0
    quiet_since: float | None = None  # no request in work or waiting since then
    requests: float | None = None  # how many there were when last looked; None = not known
    work: asyncio.Task[Work | None] | None = None
    sleep_call: asyncio.Task[str] | None = None
    canary_due: bool = False  # it has woken and must show a token before it counts as ready
    canary: asyncio.Task[str] | None = None
    canary_after: float = 0.0
    canary_until: float | None = None

    @property
    def key(self) -> Key:
        return self.task_id, self.attempt

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.attempt}"

    @classmethod
    def from_desired(cls, task: DesiredTask, now: float) -> Attempt:
        """Begin to follow what the server listed."""
        return cls(task.task_id, task.attempt, born_at=now, stop_grace_s=task.stop_grace_seconds)

    def drop_io(self) -> None:
        """Cancel the questions under way; their answers no longer matter."""
        for task in (self.claim, self.probe, self.work, self.sleep_call, self.canary):
            if task is not None:
                task.cancel()
        self.claim = self.probe = self.work = self.sleep_call = self.canary = None
