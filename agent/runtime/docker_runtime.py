"""Runs engines in containers (AGENT-03): what the supervisor asks, answered at once.

Owns the book of starts, instances and log copies. Docker itself is asked by threads beside: one that
looks (docker_watch), one for each start (docker_start), one for each log (docker_logs), and short ones
that end and remove (docker_end). Containers outlive the agent and are adopted by its next run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue

import psutil

from agent.config import Settings
from agent.contract.messages import CardReport, EngineReport, TaskSpec
from agent.contract.states import Phase, RuntimeKind
from agent.engines.catalog import engine_from_image
from agent.identity import StateDir
from agent.runtime import docker_pins
from agent.runtime.base import Adopted, Exit, Instance, Kept, PortBusy, Starting, StartRefused
from agent.runtime.docker_client import Docker, DockerRefused, NoAnswer, told
from agent.runtime.docker_end import Ending
from agent.runtime.docker_engines import engines_here
from agent.runtime.docker_images import Images
from agent.runtime.docker_labels import Found, spec_of
from agent.runtime.docker_logs import LogCopy
from agent.runtime.docker_places import Place, save_place
from agent.runtime.docker_private import PrivateImages
from agent.runtime.docker_restart import RestartJob
from agent.runtime.docker_start import StartJob
from agent.runtime.docker_watch import ENDED, RUNNING, Watch

log = logging.getLogger("agent.runtime")
Key = tuple[str, int]
SWEEP_EACH_S = 30.0  # networks that are left behind hold addresses, and nothing else
LOG_WAIT_S = 10.0  # after an end, for the rest of its log
MB = 1 << 20


class DockerRuntime:
    """The Docker runtime; fills `agent.runtime.base.Runtime`. Its methods are called from one thread."""

    kind = RuntimeKind.DOCKER

    def __init__(
        self, settings: Settings, state_dir: StateDir, *, agent: str, node: Callable[[], str]
    ) -> None:
        self.outlives_agent = not settings.stop_on_leave
        self._settings = settings
        self._state_dir = state_dir
        self._agent = agent
        self._node = node
        self._docker = Docker(settings.docker_host, settings.docker_timeout_s)
        self._pins = state_dir.path / "held"
        docker_pins.clear(self._pins)
        self._images = Images(self._docker, settings, PrivateImages(state_dir.path / "private-images.json"))
        self._ending = Ending(self._docker, agent)
        self._watch = Watch(
            self._docker,
            self._images,
            agent=agent,
            poll_s=settings.docker_poll_s,
            silence_s=settings.docker_silence_s,
            upkeep=self._keep_up,
        )
        self._places = state_dir.path / "logplaces"
        self._places.mkdir(mode=0o700, exist_ok=True)
        for place in self._places.glob("*.json"):
            if not (self._state_dir.logs / f"{place.stem}.log").exists():
                place.unlink()
        self._jobs: dict[Key, StartJob] = {}
        self._restarts: dict[Key, RestartJob] = {}
        self._instances: dict[str, Key] = {}
        self._copies: dict[str, LogCopy] = {}
        self._ended_at: dict[str, float] = {}
        self._ready: SimpleQueue[Adopted] = SimpleQueue()
        self._met: set[str] = set()
        self._swept_at = float("-inf")
        self._card_indexes: dict[str, int] = {}
        self._told_copies: set[str] = set()
        self._watch.start()

    # --- what is here -----------------------------------------------------------------------------

    def answers(self) -> bool:
        return self._watch.answers()

    def clean_left_overs(self) -> list[str]:
        """Nothing is ended here: what runs is adopted, and what failed to start is removed by `_keep_up`
        as soon as Docker answers."""
        return []

    def probe_engines(self, cards: list[CardReport] | None) -> list[EngineReport]:
        if cards is not None:
            self._card_indexes = {card.uuid: card.index for card in cards}
        found, hints = engines_here(self._watch.tags(), cards or [])
        for hint in hints:
            if hint not in self._told_copies:
                self._told_copies.add(hint)
                log.warning("%s", hint)
        return found

    def engine_images(self) -> list[str] | None:
        return sorted(tag for tag in self._watch.tags() if engine_from_image(tag))

    def adoptable(self) -> list[Adopted]:
        ready: list[Adopted] = []
        while not self._ready.empty():
            ready.append(self._ready.get())
            self._enter(ready[-1].instance)
        return ready

    def _keep_up(self) -> None:
        """In the watching thread, after each complete answer: removals that wait, and strangers."""
        self._ending.remove_pending()
        for found in self._watch.found():
            starting = any(job.spec.task_id == found.task_id for job in list(self._jobs.values()))
            known = found.container in self._met or found.container in self._instances
            if known or starting or self._ending.is_leaving(found.container):
                continue
            try:
                if found.state == "created":
                    log.warning("%s: the left-over of a failed start is removed", found.name)
                    self._ending.remove_now(found.container, found.task_id)
                elif found.state != "removing":
                    self._meet(found)
            except DockerRefused as error:
                log.warning("%s: not taken over yet: %s", found.name, error)
        if time.monotonic() - self._swept_at > SWEEP_EACH_S:
            self._swept_at = time.monotonic()
            try:
                self._ending.remove_stray_networks(self._tasks)
            except (NoAnswer, DockerRefused) as error:
                log.warning("networks that were left behind are not removed yet: %s", error)

    def _tasks(self) -> set[str]:
        """Tasks of which something is here or under way. Starts first: they become instances."""
        starting = {task_id for task_id, _ in list(self._jobs)}
        started = {task_id for task_id, _ in list(self._instances.values())}
        return starting | started | {found.task_id for found in self._watch.found()}

    def _meet(self, found: Found) -> None:
        """A container of ours that this run has not started. Raises NoAnswer or DockerRefused."""
        with told():
            there = self._docker.api.inspect_container(found.container)
        spec = spec_of(found, list(there["Config"].get("Env") or []))
        instance = Instance(
            found.task_id, found.attempt, found.container, [port.host_port for port in spec.ports]
        )
        self._met.add(found.container)
        self._watch.track(found.container)
        age_s = _age_s(str(there["State"].get("StartedAt", "")), time.time())
        log.info("%s: found as container %s; it goes on", found.name, found.container[:12])
        stopped = str(there["State"].get("Status", "")) in ENDED
        self._ready.put(Adopted(instance, spec, age_s, stopped))

    # --- starting ---------------------------------------------------------------------------------

    def start(self, spec: TaskSpec) -> Instance | Starting:
        key = spec.task_id, spec.attempt
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = StartJob(
                spec,
                docker=self._docker,
                images=self._images,
                ending=self._ending,
                settings=self._settings,
                agent=self._agent,
                node=self._node(),
                card_indexes=dict(self._card_indexes),
                host_memory_mb=psutil.virtual_memory().total // MB,
                on_running=self._watch.track,
                pins=self._pins,
            )
        if not job.done.is_set():
            return Starting(job.phase)
        outcome = job.outcome
        if isinstance(outcome, Instance):
            self._enter(outcome)
            del self._jobs[key]
            return outcome
        del self._jobs[key]
        if isinstance(outcome, PortBusy | StartRefused):
            raise outcome
        raise RuntimeError(f"the start of {spec.task_id} ended without an outcome")

    def abandon(self, task_id: str, attempt: int) -> bool:
        again = self._restarts.get((task_id, attempt))
        if again is not None:
            again.abandon()
            if not again.done.is_set():
                return False
            del self._restarts[task_id, attempt]
        job = self._jobs.get((task_id, attempt))
        if job is not None:
            job.abandon()
            if not job.done.is_set():
                return False
            if isinstance(job.outcome, Instance):  # it was through before it heard of it
                self._ending.remove(job.outcome.name, task_id)
                self._watch.drop(job.outcome.name)
            del self._jobs[task_id, attempt]
        return not self._ending.is_pending(task_id)

    def _enter(self, instance: Instance) -> None:
        name = instance.name
        if name in self._instances:
            return
        self._instances[name] = instance.task_id, instance.attempt
        self._copy_log(instance)

    def _copy_log(self, instance: Instance) -> None:
        """From where its copying ended before, if it did."""
        name = instance.name
        before = self._copies.pop(name, None)
        if before is not None:
            before.close()
        self._ended_at.pop(name, None)
        self._copies[name] = LogCopy(
            self._docker,
            name,
            file=self.log_file(instance.task_id, instance.attempt),
            place_file=self._place_file(instance),
            ended=lambda: self._watch.exit_of(name) is not None,
        )

    # --- watching and ending ----------------------------------------------------------------------

    def poll(self, instance: Instance) -> Exit | None:
        ended = self._watch.exit_of(instance.name)
        if ended is None:
            return None
        copy = self._copies.get(instance.name)
        since = self._ended_at.setdefault(instance.name, time.monotonic())
        if copy is not None and not copy.done.is_set() and time.monotonic() - since < LOG_WAIT_S:
            return None
        return ended

    def terminate(self, instance: Instance) -> None:
        self._ending.signal(instance.name, None)

    def kill(self, instance: Instance) -> None:
        self._ending.signal(instance.name, "SIGKILL")

    def keep(self, instance: Instance) -> None:
        """Its log's place stays too: the same container goes on in the same log."""
        self._watch.keep(instance.name)

    def kept(self, instance: Instance) -> Kept:
        ended = self._watch.exit_of(instance.name)
        if ended is not None and ended.vanished:
            return Kept.GONE
        if self._watch.state_of(instance.name) not in RUNNING:
            return Kept.LIES  # or is being removed: its absence will tell
        self._watch.drop(instance.name)
        self._watch.track(instance.name)
        self._copy_log(instance)
        return Kept.RUNS

    def restart(self, instance: Instance, spec: TaskSpec) -> Instance | Starting:
        key = instance.task_id, instance.attempt
        job = self._restarts.get(key)
        if job is None:
            copy = self._copies.get(instance.name)
            if copy is not None and not copy.done.is_set():
                copy.close()  # two of them would write over each other
                return Starting(Phase.NONE)
            self._watch.drop(instance.name)
            job = self._restarts[key] = RestartJob(
                instance,
                docker=self._docker,
                pins=self._pins,
                rules=self._settings.path_rules,
                on_running=self._watch.track,
            )
        if not job.done.is_set():
            return Starting(Phase.NONE)
        del self._restarts[key]
        if isinstance(job.outcome, Instance):
            self._copy_log(instance)
            return instance
        self._watch.track(instance.name)
        if job.outcome is None:
            raise RuntimeError(f"the restart of {instance.task_id} ended without an outcome")
        raise job.outcome

    def forget(self, instance: Instance, *, again: bool = False) -> None:
        copy = self._copies.pop(instance.name, None)
        if copy is not None:
            copy.close()
        self._ending.remove(instance.name, instance.task_id)
        self._instances.pop(instance.name, None)
        self._met.discard(instance.name)
        self._ended_at.pop(instance.name, None)
        self._watch.drop(instance.name)
        if again:
            file = self.log_file(instance.task_id, instance.attempt)
            size = file.stat().st_size if file.exists() else 0
            save_place(self._place_file(instance), Place(offset=size))
        else:
            self._place_file(instance).unlink(missing_ok=True)

    def close(self, wait_s: float) -> None:
        self._ending.close(wait_s)
        self._watch.close()

    def log_file(self, task_id: str, attempt: int) -> Path:
        return self._state_dir.logs / f"{task_id}.{attempt}.log"

    def _place_file(self, instance: Instance) -> Path:
        return self._places / f"{instance.task_id}.{instance.attempt}.json"


def _age_s(started_at: str, now: float) -> float:
    """Seconds since Docker's StartedAt; 0 where it cannot be read. `now` in epoch seconds."""
    try:
        started = datetime.fromisoformat(f"{started_at[:19]}+00:00").timestamp()
    except ValueError:
        return 0.0
    return max(0.0, now - started)
