"""A runtime, a server's claims and a memory of reports, for the supervisor's tests."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent.config import Settings
from agent.contract.codes import Reason
from agent.contract.messages import (
    CardReport,
    ClaimAnswer,
    ClaimGranted,
    ClaimRequest,
    DesiredTask,
    EngineReport,
    HealthCheck,
    HeartbeatReply,
    HeartbeatUnchanged,
    PortMapping,
    TaskSpec,
)
from agent.contract.states import Desired, Observed, Phase, RuntimeKind, TaskType
from agent.contract.wire import hash_desired
from agent.errors import ServerUnreachable
from agent.runtime.base import Adopted, Exit, Instance, Kept, Starting
from agent.supervisor.desired import DesiredList
from agent.supervisor.health import Outcome, Probe, Work
from agent.supervisor.probe import ProbeTarget
from agent.supervisor.sleepmarks import SleepMarks
from agent.supervisor.supervisor import Supervisor


def make_settings(state_dir: Path, **changes: object) -> Settings:
    values: dict[str, object] = {"server_url": "http://127.0.0.1:1", "state_dir": str(state_dir), **changes}
    return Settings(**values)  # type: ignore[arg-type]


def make_spec(task_id: str = "task-a", attempt: int = 1, **changes: object) -> TaskSpec:
    values: dict[str, object] = {
        "task_id": task_id,
        "attempt": attempt,
        "task_type": TaskType.INFERENCE,
        "image": "",
        "engine": "llamacpp",
        "served_model_name": "tiny",
        "model_path": "/models/tiny",
        "ports": [PortMapping(8080, 20001)],
        "health_check": HealthCheck(),
        **changes,
    }
    return TaskSpec(**values)  # type: ignore[arg-type]


@dataclass
class FakeRuntime:
    """Engines that end when a test says so."""

    folder: Path
    kind: RuntimeKind = RuntimeKind.PROCESS
    started: list[TaskSpec] = field(default_factory=list)
    start_errors: list[Exception] = field(default_factory=list)
    exits: dict[str, Exit] = field(default_factory=dict)
    terminated: list[str] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    obeys: bool = True
    breaks: set[str] = field(default_factory=set)  # names whose poll raises
    outlives_agent: bool = False
    silent: bool = False
    adopted: list[Adopted] = field(default_factory=list)
    starting: list[Starting] = field(default_factory=list)  # answers of `start` before the last
    abandoned: list[tuple[str, int]] = field(default_factory=list)
    abandon_takes: int = 0  # how often `abandon` says "not yet"
    kept_ones: list[str] = field(default_factory=list)
    kept_as: dict[str, Kept] = field(default_factory=dict)
    restarted: list[str] = field(default_factory=list)
    forgotten_for_now: list[str] = field(default_factory=list)

    def answers(self) -> bool:
        return not self.silent

    def adoptable(self) -> list[Adopted]:
        found, self.adopted = self.adopted, []
        return found

    def abandon(self, task_id: str, attempt: int) -> bool:
        self.abandoned.append((task_id, attempt))
        self.abandon_takes -= 1
        return self.abandon_takes < 0

    def close(self, wait_s: float) -> None:
        return

    def probe_engines(self, cards: list[CardReport] | None) -> list[EngineReport]:
        return []

    def engine_images(self) -> list[str] | None:
        return None

    def clean_left_overs(self) -> list[str]:
        return []

    def start(self, spec: TaskSpec) -> Instance | Starting:
        if self.starting:
            return self.starting.pop(0)
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.started.append(spec)
        ports = [p.host_port for p in spec.ports]
        self.exits.pop(f"{spec.task_id}.{spec.attempt}", None)
        return Instance(spec.task_id, spec.attempt, f"{spec.task_id}.{spec.attempt}", ports)

    def poll(self, instance: Instance) -> Exit | None:
        if instance.name in self.breaks:
            raise RuntimeError("poll broke")
        return self.exits.get(instance.name)

    def terminate(self, instance: Instance) -> None:
        self.terminated.append(instance.name)
        if self.obeys:
            self.exits[instance.name] = Exit(0)

    def kill(self, instance: Instance) -> None:
        self.killed.append(instance.name)
        self.breaks.discard(instance.name)
        self.exits[instance.name] = Exit(137)

    def keep(self, instance: Instance) -> None:
        self.kept_ones.append(instance.name)

    def kept(self, instance: Instance) -> Kept:
        return self.kept_as.get(instance.name, Kept.LIES)

    def restart(self, instance: Instance, spec: TaskSpec) -> Instance | Starting:
        if self.starting:
            return self.starting.pop(0)
        if self.start_errors:
            raise self.start_errors.pop(0)
        self.restarted.append(instance.name)
        self.exits.pop(instance.name, None)
        return instance

    def forget(self, instance: Instance, *, again: bool = False) -> None:
        self.forgotten.append(instance.name)
        self.forgotten_for_now += [instance.name] * again

    def log_file(self, task_id: str, attempt: int) -> Path:
        return self.folder / f"{task_id}.{attempt}.log"


@dataclass
class Told:
    task_id: str
    attempt: int
    phase: Phase
    observed: Observed
    why: Reason | None
    exit_code: int | None
    lines: list[str]
    notes: list[Reason] = field(default_factory=list)


@dataclass
class FakeReports:
    told: list[Told] = field(default_factory=list)
    unacknowledged: set[tuple[str, int]] = field(default_factory=set)

    def waiting(self, task_id: str, attempt: int) -> bool:
        return (task_id, attempt) in self.unacknowledged

    def add(
        self,
        task_id: str,
        attempt: int,
        phase: Phase,
        observed: Observed,
        *,
        why: Reason | None = None,
        exit_code: int | None = None,
        last_log_lines: list[str] | None = None,
        notes: list[Reason] | None = None,
    ) -> None:
        self.told.append(
            Told(task_id, attempt, phase, observed, why, exit_code, last_log_lines or [], notes or [])
        )

    def phases(self) -> list[tuple[int, Phase, Observed]]:
        return [(t.attempt, t.phase, t.observed) for t in self.told]


@dataclass
class FakeLogs:
    followed: list[tuple[str, int]] = field(default_factory=list)
    finished: list[tuple[str, int, bool]] = field(default_factory=list)

    def follow(self, task_id: str, attempt: int, file: Path, secrets: list[str]) -> None:
        self.followed.append((task_id, attempt))

    def finish(self, task_id: str, attempt: int, *, final: bool) -> None:
        self.finished.append((task_id, attempt, final))


@dataclass
class FakeCards:
    """Cards that are free unless a test says otherwise."""

    busy: Reason | None = None
    quarantined: bool = False

    def hindrance(self, gpu_uuids: Iterable[str], now: float) -> Reason | None:
        return self.busy

    def is_quarantined(self, gpu_uuids: Iterable[str]) -> bool:
        return self.quarantined


class World:
    """A supervisor with all its surroundings, and a clock that a test moves."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.settings = make_settings(folder, **settings)
        self.desired = DesiredList()
        self.runtime = FakeRuntime(folder)
        self.reports = FakeReports()
        self.logs = FakeLogs()
        self.specs: dict[tuple[str, int], TaskSpec] = {}
        self.claims: list[ClaimRequest] = []
        self.claim_answers: list[ClaimAnswer | Exception] = []
        self.claim_gate: asyncio.Event | None = None
        self.probes: list[ProbeTarget] = []
        self.probe_answer = Probe(Outcome.OK)
        self.works: list[Work | None] = []  # answers to give first, in order
        self.work_answer: Work | None = Work(steps=0, running=0, waiting=0)
        self.sleep_calls: list[tuple[ProbeTarget, int]] = []
        self.sleep_answer = ""
        self.sleep_gate: asyncio.Event | None = None
        self.canaries: list[ProbeTarget] = []
        self.canary_answers: list[str] = []  # answers to give first, in order; "" is a token
        self.now = 1000.0
        self.cards = FakeCards()
        self.supervisor = Supervisor(
            settings=self.settings,
            incarnation="inc-1",
            desired=self.desired,
            runtime=self.runtime,
            claim=self._claim,
            engines=self,
            reports=self.reports,
            logs=self.logs,
            marks=SleepMarks(folder / "asleep"),
            cards=self.cards,
        )

    async def _claim(self, request: ClaimRequest) -> ClaimAnswer:
        self.claims.append(request)
        if self.claim_gate is not None:
            await self.claim_gate.wait()
        if self.claim_answers:
            answer = self.claim_answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        spec = self.specs.get((request.task_id, request.attempt))
        if spec is None:
            raise ServerUnreachable("no spec in this test")
        return ClaimGranted(spec)

    async def probe(self, target: ProbeTarget) -> Probe:
        self.probes.append(target)
        return self.probe_answer

    async def work(self, target: ProbeTarget) -> Work | None:
        return self.works.pop(0) if self.works else self.work_answer

    async def sleep(self, target: ProbeTarget, level: int, timeout_s: float) -> str:
        self.sleep_calls.append((target, level))
        if self.sleep_gate is not None:
            await self.sleep_gate.wait()
        return self.sleep_answer

    async def canary(self, target: ProbeTarget, timeout_s: float) -> str:
        self.canaries.append(target)
        return self.canary_answers.pop(0) if self.canary_answers else ""

    def list(self, *tasks: DesiredTask, complete: bool = True) -> None:
        """The server answers with this list."""
        self.desired.take(HeartbeatReply(hash_desired([*tasks]), complete, [*tasks]))

    def unchanged(self) -> None:
        self.desired.take(HeartbeatUnchanged(self.desired.hash))

    def want(self, attempt: int = 1, task_id: str = "task-a", desired: Desired = Desired.RUN) -> DesiredTask:
        """A listing of an attempt that can be claimed."""
        self.specs.setdefault((task_id, attempt), make_spec(task_id, attempt))
        return DesiredTask(task_id, attempt, desired, stop_grace_seconds=10)

    async def go(self, seconds: float = 0.0, steps: int = 1) -> None:
        """Let time pass and step, giving claims and probes their turn."""
        for _ in range(steps):
            self.now += seconds / steps
            for _ in range(4):
                self.supervisor.step(self.now)
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    async def run_to_ready(self, attempt: int = 1) -> None:
        self.list(self.want(attempt))
        await self.go(steps=2)
        assert self.reports.told[-1].phase is Phase.READY
