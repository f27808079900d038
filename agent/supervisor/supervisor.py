"""Makes what runs here equal to what the server wants (AGENT-02, -08, -09). One loop.

Owns the attempts, and the decision whether each should run. Each step looks at the desired list and at
the runtime and does the next thing for every attempt (`starting.py`, `serving.py`, `sleeping.py`,
`waking.py`, `ending.py`); it may be run again at any moment. Slow questions (claims, probes) run beside it
and are picked up by a later step, so that a server or an engine that hangs holds up nothing. Never restarts
an attempt that ended: the server decides that by a new attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from agent.config import Settings
from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import RunningReport
from agent.contract.states import Desired, Observed, Phase
from agent.gpu.ownership import Occupant
from agent.runtime.base import Runtime
from agent.supervisor.attempt import ALIVE, STARTED, Attempt, Stage
from agent.supervisor.claiming import ClaimCall, Claiming
from agent.supervisor.desired import DesiredList, Key
from agent.supervisor.ending import KILL_PAUSE_S, advance_stopping, conclude, wished_end
from agent.supervisor.outlets import Cards, Engines, Logs, Reports
from agent.supervisor.serving import advance_running
from agent.supervisor.sleeping import advance_asleep, advance_call, advance_draining
from agent.supervisor.sleepmarks import SleepMarks
from agent.supervisor.starting import adopt, start, take_spec
from agent.supervisor.surroundings import Surroundings
from agent.supervisor.waking import advance_waking, begin_wake

log = logging.getLogger("agent.supervisor")
ASKING = (Stage.WANTED, Stage.CLAIMING)  # of a claimed attempt: for another port
SURE_LISTS = 2  # complete lists, before what stands in none of them is forgotten
# What is here already, by its stage; `why` it must not be.
HERE: dict[Stage, Callable[[Surroundings, Attempt, Reason | None, float], None]] = {
    Stage.RUNNING: advance_running,
    Stage.DRAINING: advance_draining,
    Stage.SLEEP_CALL: advance_call,
    Stage.STOPPING: advance_stopping,
    Stage.ASLEEP: advance_asleep,
    Stage.WAKING: advance_waking,
}


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
        engines: Engines,
        reports: Reports,
        logs: Logs,
        marks: SleepMarks,
        cards: Cards,
    ) -> None:
        self._settings = settings
        self._desired = desired
        self._runtime = runtime
        self._reports = reports
        self._wake = asyncio.Event()
        self._around = Surroundings(
            settings=settings,
            runtime=runtime,
            engines=engines,
            reports=reports,
            logs=logs,
            marks=marks,
            cards=cards,
            wake=self.wake,
        )
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
        self._around.leaving = True
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
            key = adopted.instance.task_id, adopted.instance.attempt
            self.attempts[key] = adopt(self._around, self.attempts.get(key), adopted, now)
        for key, task in self._desired.tasks.items():
            known = self.attempts.get(key)
            if known is None:
                self.attempts[key] = Attempt.from_desired(task, now)
            else:
                known.stop_grace_s = task.stop_grace_seconds
            self.attempts[key].sleep = task.sleep if task.desired is Desired.STOP else None
        if self._desired.complete_lists > SURE_LISTS:
            self._around.marks.keep_only({*self._desired.tasks, *self.attempts})
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
            if a.stage in ALIVE or (a.claimed and (a.stage in ASKING or self._reports.waiting(*a.key)))
        ]

    def occupants(self) -> dict[Key, Occupant]:
        """Attempts that hold memory of cards now."""
        return {
            a.key: Occupant(a.instance.name, a.spec.gpu_uuids)
            for a in self.attempts.values()
            if a.stage in STARTED and a.instance is not None and a.spec is not None and a.spec.gpu_uuids
        }

    # --- one attempt ------------------------------------------------------------------------------

    def _advance(self, a: Attempt, now: float) -> None:
        why = self._why_not(a, now)
        if why is None and a.sleep is not None and a.stage in (Stage.WANTED, Stage.STARTING, Stage.EXITED):
            why = reason(Code.CONTAINER_GONE)  # to sleep, and nothing of it is here, or not any more
        if a.stage is Stage.WANTED:
            self._advance_wanted(a, why, now)
        elif a.stage is Stage.CLAIMING:
            spec = self._claiming.take(a, now)
            if spec is not None:
                take_spec(self._around, a, spec)
        elif a.stage is Stage.STARTING:
            if why is None:
                start(self._around, a, now)
            elif self._runtime.abandon(*a.key):
                conclude(self._around, a, now, wished_end(self._around), why=why)
        elif a.stage in HERE:
            HERE[a.stage](self._around, a, why, now)
            if a.stage is Stage.ASLEEP and self._is_wanted(a):
                begin_wake(self._around, a)
        elif a.stage is Stage.EXITED:
            if why is not None and not self._around.leaving:
                conclude(self._around, a, now, Observed.GONE, why=why, again=a.sleep is not None)
        else:
            self._advance_gone(a, now)

    def _why_not(self, a: Attempt, now: float) -> Reason | None:
        """Why this attempt must not run here; None when it should, or while that is not certain."""
        if self._around.leaving:
            return reason(Code.AGENT_RESTARTED)
        listed = self._desired.tasks.get(a.key)
        if listed is not None and listed.desired is Desired.STOP and listed.sleep is None:
            return reason(Code.STOP_REQUESTED)
        newest = self._desired.newest_attempt(a.task_id)
        if newest > a.attempt:
            return reason(Code.CLAIM_SUPERSEDED, attempt=newest)
        missing = self._desired.absent_lists(a.key)
        if missing >= 2 and now - a.born_at > self._settings.orphan_grace_s:
            return reason(Code.CLAIM_UNKNOWN, complete_lists=missing)
        return None

    def _is_wanted(self, a: Attempt) -> bool:
        listed = self._desired.tasks.get(a.key)
        return listed is not None and listed.desired is Desired.RUN

    def _advance_wanted(self, a: Attempt, why: Reason | None, now: float) -> None:
        if why is not None:
            # Never started here: whoever asks for its end can have it at once.
            conclude(
                self._around,
                a,
                now,
                Observed.GONE,
                why=why,
                silent=self._around.leaving or a.key not in self._desired.tasks,
            )
            return
        if self._reports.waiting(*a.key):
            return  # of an earlier run: the server must know first how it ended there
        listed = self._desired.tasks.get(a.key)
        if listed is not None and not self._older_lives(a) and self._claiming.may_ask(a, now):
            self._claiming.ask(a)

    def _older_lives(self, a: Attempt) -> bool:
        """The former attempt must be gone before the next one starts."""
        return any(b.task_id == a.task_id and b is not a and b.stage in ALIVE for b in self.attempts.values())

    def _advance_gone(self, a: Attempt, now: float) -> None:
        listed = self._desired.tasks.get(a.key)
        if listed is not None and listed.desired is Desired.RUN and self._reports.waiting(*a.key):
            return  # the server must know that it is gone before it is made anew
        if listed is None or listed.desired is Desired.RUN:
            # Not asked for any more; or asked for anew: then the server decides by the claim.
            if self._desired.newest_attempt(a.task_id) <= a.attempt:
                del self.attempts[a.key]
                self._desired.forget(a.key)
        elif now - a.told_gone_at >= self._settings.gone_repeat_s and not self._reports.waiting(*a.key):
            a.told_gone_at = now
            self._around.tell(a, Phase.LEAVING, why=reason(Code.STOP_CONFIRMED))

    def _fail(self, a: Attempt, now: float) -> None:
        """After a fault of our own: the engine is ended, the server told; the rest goes on."""
        try:
            if a.stage in STARTED and a.instance is not None:
                self._runtime.kill(a.instance)
                a.stage, a.ending, a.why = Stage.STOPPING, Observed.EXITED, reason(Code.INTERNAL)
                a.kill_after = now + KILL_PAUSE_S
            elif a.stage in (Stage.STARTING, Stage.WAKING):
                conclude(self._around, a, now, Observed.EXITED, why=reason(Code.INTERNAL))
            else:
                a.stage = Stage.WANTED if a.stage is Stage.CLAIMING else a.stage
                self._claiming.hold_back(a, now)
        except Exception:
            log.exception("%s: could not be ended after a fault", a.name)
