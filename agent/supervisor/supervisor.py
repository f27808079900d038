"""Makes what runs here equal to what the server wants (AGENT-02, -08, -09). One loop.

Owns the attempts. Each step looks at the desired list and at the runtime and does the next thing
for every attempt; it may be run again at any moment. Slow questions (claims, probes) run beside it
and are picked up by a later step, so that a server or an engine that hangs holds up nothing. Never
restarts an attempt that ended: the server decides that by a new attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agent.config import Settings
from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import RunningReport
from agent.contract.states import Desired, Observed, Phase
from agent.masking import secret_values
from agent.plainlog import MASKING
from agent.runtime.base import Adopted, Exit, Instance, PortBusy, Runtime, Starting, StartRefused
from agent.supervisor.attempt import ALIVE, STARTED, Attempt, Stage
from agent.supervisor.claiming import ClaimCall, Claiming
from agent.supervisor.desired import DesiredList, Key
from agent.supervisor.health import Probe
from agent.supervisor.lastlines import read_last_lines
from agent.supervisor.outlets import Logs, Reports
from agent.supervisor.probe import ProbeTarget
from agent.supervisor.watching import build_monitor, build_target, why_ended

log = logging.getLogger("agent.supervisor")
LAST_LINES = 20
KILL_PAUSE_S = 1.0
MAX_START_PAUSE_S = 15.0


ProbeCall = Callable[[ProbeTarget], Awaitable[Probe]]


class Supervisor:
    """`step(now)` is the loop's body; `run` calls it with the clock that it is given."""

    def __init__(
        self,
        *,
        settings: Settings,
        incarnation: str,
        desired: DesiredList,
        runtime: Runtime,
        claim: ClaimCall,
        probe: ProbeCall,
        reports: Reports,
        logs: Logs,
    ) -> None:
        self._settings = settings
        self._desired = desired
        self._runtime = runtime
        self._probe = probe
        self._reports = reports
        self._logs = logs
        self._leaving = False
        self._wake = asyncio.Event()
        self._claiming = Claiming(
            claim, settings=settings, incarnation=incarnation, desired=desired, wake=self.wake
        )
        self.attempts: dict[Key, Attempt] = {}

    # --- the loop ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Run the next step now."""
        self._wake.set()

    async def run(self, clock: Callable[[], float]) -> None:
        """Step for ever, at each wake and at least each `step_s`."""
        while True:
            self._wake.clear()
            self.step(clock())
            try:
                await asyncio.wait_for(self._wake.wait(), self._settings.step_s)
            except TimeoutError:
                continue

    async def leave(self, clock: Callable[[], float]) -> None:
        """Stop all in order within `shutdown_s`; what outlives the agent is left to its next run."""
        if self._runtime.outlives_agent:
            for attempt in self.attempts.values():
                attempt.drop_io()
            return
        self._leaving = True
        deadline = clock() + self._settings.shutdown_s
        while self._step_and_count(clock()) and clock() < deadline:
            await asyncio.sleep(0.05)
        for attempt in self.attempts.values():
            attempt.drop_io()
            if attempt.stage in STARTED and attempt.instance is not None:
                log.error("%s did not end in time; killed", attempt.name)
                self._runtime.kill(attempt.instance)

    def _step_and_count(self, now: float) -> int:
        self.step(now)
        return sum(a.stage in ALIVE for a in self.attempts.values())

    def step(self, now: float) -> None:
        """Bring every attempt one move nearer; one that fails in here harms no other."""
        for adopted in self._runtime.adoptable():
            self._adopt(adopted, now)
        for key, task in self._desired.tasks.items():
            known = self.attempts.get(key)
            if known is None:
                self.attempts[key] = Attempt.from_desired(task, now)
            else:
                known.stop_grace_s = task.stop_grace_seconds
        for attempt in list(self.attempts.values()):
            try:
                self._advance(attempt, now)
            except Exception:
                log.exception("%s: a step failed", attempt.name)
                self._fail(attempt, now)

    def running(self) -> list[RunningReport]:
        """What this run of the agent answers for, for the heartbeat.

        An attempt that has ended stays in the list until its report was acknowledged: a heartbeat
        that overtakes the report would have the server conclude that it vanished, without exit code
        and last lines.
        """
        return [
            RunningReport(a.task_id, a.attempt, a.observed, list(a.instance.host_ports) if a.instance else [])
            for a in self.attempts.values()
            if a.stage in ALIVE or (a.claimed and self._reports.waiting(a.task_id, a.attempt))
        ]

    # --- one attempt ------------------------------------------------------------------------------

    def _advance(self, a: Attempt, now: float) -> None:
        why = self._why_not(a, now)
        if a.stage is Stage.WANTED:
            self._advance_wanted(a, why, now)
        elif a.stage is Stage.CLAIMING:
            self._take_claim(a, now)
        elif a.stage is Stage.STARTING:
            if why is None:
                self._start(a, now)
            elif self._runtime.abandon(*a.key):
                self._conclude(a, now, self._ending(), why=why)
        elif a.stage is Stage.RUNNING:
            self._advance_running(a, why, now)
        elif a.stage is Stage.STOPPING:
            self._advance_stopping(a, why, now)
        elif a.stage is Stage.EXITED:
            if why is not None and not self._leaving:
                self._conclude(a, now, Observed.GONE, why=why)
        else:
            self._advance_gone(a, now)

    def _why_not(self, a: Attempt, now: float) -> Reason | None:
        """Why this attempt must not run here; None when it should, or while that is not certain."""
        if self._leaving:
            return reason(Code.AGENT_RESTARTED)
        listed = self._desired.tasks.get(a.key)
        if listed is not None and listed.desired is Desired.STOP:
            return reason(Code.STOP_REQUESTED)
        newest = self._desired.newest_attempt(a.task_id)
        if newest > a.attempt:
            return reason(Code.CLAIM_SUPERSEDED, attempt=newest)
        missing = self._desired.absent_lists(a.key)
        if missing >= 2 and now - a.born_at > self._settings.orphan_grace_s:
            return reason(Code.CLAIM_UNKNOWN, complete_lists=missing)
        return None

    def _ending(self) -> Observed:
        """Leaving ends the engine, not the wish for it: that is an exit, and no "gone"."""
        return Observed.EXITED if self._leaving else Observed.GONE

    def _advance_wanted(self, a: Attempt, why: Reason | None, now: float) -> None:
        if why is not None:
            # Never started here: whoever asks for its end can have it at once.
            self._conclude(
                a, now, Observed.GONE, why=why, silent=self._leaving or a.key not in self._desired.tasks
            )
            return
        listed = self._desired.tasks.get(a.key)
        if listed is not None and not self._older_lives(a) and self._claiming.may_ask(a, now):
            self._claiming.ask(a)

    def _older_lives(self, a: Attempt) -> bool:
        """The former attempt must be gone before the next one starts."""
        return any(b.task_id == a.task_id and b is not a and b.stage in ALIVE for b in self.attempts.values())

    def _take_claim(self, a: Attempt, now: float) -> None:
        spec = self._claiming.take(a, now)
        if spec is None:
            return
        a.spec = spec
        a.secrets = [s for s in (spec.engine_key, *secret_values(spec.env)) if s]
        MASKING.add(*a.secrets)
        a.claimed = True
        a.stage = Stage.STARTING
        self._tell(a, Phase.CLAIMED)
        self.wake()

    def _start(self, a: Attempt, now: float) -> None:
        if now < a.start_after or a.spec is None:
            return
        try:
            begun = self._runtime.start(a.spec)
        except StartRefused as error:
            self._announce(a, Phase.CREATING)
            self._conclude(a, now, Observed.EXITED, why=error.reason)
            return
        except PortBusy as error:
            self._announce(a, Phase.CREATING)
            if a.start_deadline is None:
                a.start_deadline = now + self._settings.port_wait_s
            if now >= a.start_deadline:
                self._conclude(a, now, Observed.EXITED, why=reason(Code.PORT_CONFLICT, port=error.port))
                return
            log.warning("%s: port %d is in use; trying again", a.name, error.port)
            a.start_after = now + a.start_pause_s
            a.start_pause_s = min(a.start_pause_s * 2, MAX_START_PAUSE_S)
            return
        if isinstance(begun, Starting):
            if begun.phase is not Phase.NONE:
                self._announce(a, begun.phase)
            return
        self._announce(a, Phase.CREATING)
        self._watch(a, begun, now, age_s=0.0)
        self._tell(a, Phase.LOADING)

    def _announce(self, a: Attempt, phase: Phase) -> None:
        """Tell how far the start is, each phase once."""
        if phase is not a.announced:
            a.announced = phase
            self._tell(a, phase)

    def _watch(self, a: Attempt, instance: Instance, now: float, *, age_s: float) -> None:
        """From now on it runs: look after its health and its log. `age_s` since its real start."""
        assert a.spec is not None
        a.instance, a.stage = instance, Stage.RUNNING
        a.health = build_monitor(self._settings, a.spec, now, age_s=age_s)
        a.probe_after = now
        self._logs.follow(a.task_id, a.attempt, self._runtime.log_file(*a.key), a.secrets)

    def _adopt(self, found: Adopted, now: float) -> None:
        """Take over what an earlier run started (AGENT-09). The heartbeat names it; nothing is told."""
        key = found.instance.task_id, found.instance.attempt
        known = self.attempts.get(key)
        if known is not None and known.stage not in (Stage.WANTED, Stage.CLAIMING):
            log.error("%s.%d: found again while it is %s", *key, known.stage.value)
            return
        if known is not None:
            known.drop_io()
        a = known or Attempt(*key, born_at=now, stop_grace_s=self._settings.adopted_grace_s)
        self.attempts[key] = a
        a.spec, a.claimed = found.spec, True
        a.secrets = [s for s in (found.spec.engine_key, *secret_values(found.spec.env)) if s]
        MASKING.add(*a.secrets)
        self._watch(a, found.instance, now, age_s=found.age_s)

    def _advance_running(self, a: Attempt, why: Reason | None, now: float) -> None:
        if a.instance is None:
            return
        ended = self._runtime.poll(a.instance)
        if ended is not None:
            own = why_ended(ended)
            gone = why is not None and not self._leaving
            self._conclude(a, now, Observed.GONE if gone else Observed.EXITED, why=why or own, ended=ended)
        elif why is not None:
            self._begin_stop(a, now, why, self._ending())
        else:
            self._watch_health(a, now)

    def _watch_health(self, a: Attempt, now: float) -> None:
        if a.health is None or a.spec is None:
            return
        if not self._runtime.answers():
            # With Docker its published ports are away too: such failures say nothing of the engine.
            a.drop_io()
            a.health.clear()
            a.probe_after = now + self._settings.loading_probe_s
            return
        if a.probe is None:
            if now >= a.probe_after:
                a.probe = asyncio.ensure_future(self._probe(build_target(self._settings, a.spec)))
                a.probe.add_done_callback(lambda _: self.wake())
            return
        if not a.probe.done():
            return
        done, a.probe = a.probe, None
        verdict = a.health.judge(done.result(), now=now, progress=self._log_grew(a))
        a.probe_after = now + a.health.pause_s(now)
        if verdict.degraded and verdict.degraded != a.degraded:
            log.warning("%s: %s", a.name, verdict.degraded)
        a.degraded = verdict.degraded
        if verdict.failed is not None:
            a.observed = Observed.UNHEALTHY
            self._tell(a, Phase.UNHEALTHY, why=verdict.failed)
            self._begin_stop(a, now, verdict.failed, Observed.EXITED)
        elif verdict.became_ready:
            a.observed = Observed.READY
            self._tell(a, Phase.READY, why=reason(Code.READY))

    def _log_grew(self, a: Attempt) -> bool:
        try:
            size = self._runtime.log_file(*a.key).stat().st_size
        except FileNotFoundError:
            return False
        before, a.log_size = a.log_size, size
        return size > before

    # --- ending -----------------------------------------------------------------------------------

    def _begin_stop(self, a: Attempt, now: float, why: Reason, ending: Observed) -> None:
        assert a.instance is not None
        a.drop_io()
        a.stage, a.why, a.ending = Stage.STOPPING, why, ending
        grace = min(a.stop_grace_s, self._settings.shutdown_s / 2) if self._leaving else a.stop_grace_s
        a.kill_after = now + grace
        self._tell(a, Phase.LEAVING, why=why)
        self._runtime.terminate(a.instance)

    def _advance_stopping(self, a: Attempt, why: Reason | None, now: float) -> None:
        assert a.instance is not None
        if self._leaving:
            a.kill_after = min(a.kill_after, now + self._settings.shutdown_s / 2)
        elif why is not None:
            a.ending = Observed.GONE
        ended = self._runtime.poll(a.instance)
        if ended is not None:
            self._conclude(a, now, a.ending, why=a.why, ended=ended)
        elif now >= a.kill_after:
            log.warning("%s did not end in its grace period; killed", a.name)
            self._runtime.kill(a.instance)
            a.kill_after = now + KILL_PAUSE_S

    def _conclude(
        self,
        a: Attempt,
        now: float,
        observed: Observed,
        *,
        why: Reason | None,
        ended: Exit | None = None,
        silent: bool = False,
    ) -> None:
        """The attempt has ended (or never began): say so with exit code and last lines."""
        a.drop_io()
        lines: list[str] = []
        if a.instance is not None:
            lines = read_last_lines(self._runtime.log_file(*a.key), LAST_LINES, a.secrets)
            self._runtime.forget(a.instance)
        self._logs.finish(a.task_id, a.attempt, final=observed is Observed.GONE)
        a.instance = a.health = a.spec = None
        a.stage = Stage.GONE if observed is Observed.GONE else Stage.EXITED
        a.observed, a.told_gone_at = observed, now
        if not silent:
            self._tell(a, Phase.LEAVING, why=why, ended=ended, lines=lines)

    def _advance_gone(self, a: Attempt, now: float) -> None:
        listed = self._desired.tasks.get(a.key)
        if listed is None or listed.desired is Desired.RUN:
            # Not asked for any more; or asked for anew: then the server decides by the claim.
            if self._desired.newest_attempt(a.task_id) <= a.attempt:
                del self.attempts[a.key]
                self._desired.forget(a.key)
        elif now - a.told_gone_at >= self._settings.gone_repeat_s:
            a.told_gone_at = now
            self._tell(a, Phase.LEAVING, why=reason(Code.STOP_CONFIRMED))

    def _fail(self, a: Attempt, now: float) -> None:
        """After a fault of our own: the engine is ended, the server told; the rest goes on."""
        try:
            if a.stage in STARTED and a.instance is not None:
                self._runtime.kill(a.instance)
                a.stage, a.ending, a.why = Stage.STOPPING, Observed.EXITED, reason(Code.INTERNAL)
                a.kill_after = now + KILL_PAUSE_S
            elif a.stage is Stage.STARTING:
                self._conclude(a, now, Observed.EXITED, why=reason(Code.INTERNAL))
            else:
                a.stage = Stage.WANTED if a.stage is Stage.CLAIMING else a.stage
                self._claiming.hold_back(a, now)
        except Exception:
            log.exception("%s: could not be ended after a fault", a.name)

    def _tell(
        self,
        a: Attempt,
        phase: Phase,
        *,
        why: Reason | None = None,
        ended: Exit | None = None,
        lines: list[str] | None = None,
    ) -> None:
        at = a.observed.value if phase is Phase.LEAVING else phase.value
        log.info("%s: %s", a.name, f"{at}, {why.code}" if why and why.code != at else at)
        code = ended.exit_code if ended else None
        self._reports.add(
            a.task_id, a.attempt, phase, a.observed, why=why, exit_code=code, last_log_lines=lines
        )
