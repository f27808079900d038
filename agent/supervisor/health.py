"""Judges an engine by its probes (AGENT-08). Pure: `now` and the probe's outcome come in.

Owns the difference between loading, ready, busy and broken. Never probes and never stops anything.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import HealthCheck

SHORT_START_PERIOD_S = 30.0  # a start period of 0 means this


class Outcome(StrEnum):
    """What one probe saw."""

    OK = "ok"
    LOADING = "loading"  # it answers, and says that it is not there yet
    FAILED = "failed"


class Work(msgspec.Struct, frozen=True):
    """Read from the engine's own metrics: steps done since its start, requests in work now, and in its
    queue (None where it does not say)."""

    steps: float
    running: float
    waiting: float | None = None

    @property
    def requests(self) -> float | None:
        """All that it has not answered yet; None where that is not known."""
        return None if self.waiting is None else self.running + self.waiting


class Probe(msgspec.Struct, frozen=True):
    """`work` None where it could not be read; that is no sign of anything."""

    outcome: Outcome
    detail: str = ""
    work: Work | None = None


class Verdict(msgspec.Struct, frozen=True):
    """`became_ready` once; `failed` is the reason to stop the engine; `degraded` is only logged."""

    became_ready: bool = False
    failed: Reason | None = None
    degraded: str = ""


class HealthMonitor:
    """The health of one started engine. All times are seconds of one monotonic clock."""

    def __init__(
        self, check: HealthCheck, *, started_at: float, load_cap_s: float, stall_s: float, loading_s: float
    ) -> None:
        self._check = check
        self._started_at = started_at
        self._start_period_s = check.start_period_seconds or SHORT_START_PERIOD_S
        self._load_cap_s = max(load_cap_s, self._start_period_s)
        self._stall_s = stall_s
        self._loading_s = loading_s
        self._failures = 0
        self._steps: float | None = None
        self._steps_moved_at = started_at
        self.ready = False

    def pause_s(self, now: float) -> float:
        """Seconds until the next probe: quick while it loads, then the check's own interval."""
        if not self.ready and now - self._started_at < self._start_period_s:
            return min(self._loading_s, self._check.interval_seconds)
        return self._check.interval_seconds

    def clear(self) -> None:
        """Forget failures, as when the engine is put to sleep."""
        self._failures = 0

    def judge(self, probe: Probe, *, now: float, progress: bool = False) -> Verdict:
        """Take one probe. `progress` means that the engine wrote log lines since the last one."""
        moved = self._note_work(probe.work, now)
        if probe.outcome is Outcome.OK:
            self._failures = 0
            became, self.ready = not self.ready, True
            return Verdict(became_ready=became, failed=self._stalled(probe.work, now))
        if not self.ready:
            return self._judge_loading(probe, now, progress)
        return self._judge_serving(probe, now, moved)

    def _judge_loading(self, probe: Probe, now: float, progress: bool) -> Verdict:
        age = now - self._started_at
        if age < self._start_period_s:
            return Verdict()
        if age >= self._load_cap_s:
            return Verdict(failed=reason(Code.LOAD_TIMEOUT, after_s=round(age), why=probe.detail))
        if probe.outcome is Outcome.LOADING or progress:
            # Visible progress extends the window: a large model is slow, not sick.
            self._failures = 0
            return Verdict()
        return self._count(probe, Code.LOAD_TIMEOUT, after_s=round(age))

    def _judge_serving(self, probe: Probe, now: float, moved: bool) -> Verdict:
        if moved:
            # It works through its queue and is too busy to answer: not dead.
            self._failures = 0
            return Verdict(degraded=probe.detail)
        if now - self._started_at < self._start_period_s:
            return Verdict(degraded=probe.detail)
        return self._count(probe, Code.UNHEALTHY)

    def _count(self, probe: Probe, code: Code, **params: float) -> Verdict:
        self._failures += 1
        if self._failures < self._check.unhealthy_threshold:
            return Verdict(degraded=probe.detail)
        return Verdict(failed=reason(code, failures=self._failures, why=probe.detail, **params))

    def _note_work(self, work: Work | None, now: float) -> bool:
        """Remember the step counter; True when it rose since it was last read."""
        if work is None:
            return False
        before, self._steps = self._steps, work.steps
        moved = before is not None and work.steps > before
        if before is None or moved or work.steps < before or work.running <= 0:
            self._steps_moved_at = now
        return moved

    def _stalled(self, work: Work | None, now: float) -> Reason | None:
        """Healthy in words, but requests are in work and no step was done for too long."""
        if work is None or work.running <= 0:
            return None
        still = now - self._steps_moved_at
        if still < self._stall_s:
            return None
        return reason(Code.STALLED, after_s=round(still), requests=round(work.running))
