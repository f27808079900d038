"""Whether a backend that has failed gets calls again (GW-08).

Pure: it is told what happened and when. Two grades: "passed over" gets calls only while no other can take
them, "open" gets none. Both end after a pause with one call that tries it. What a caller did wrong is never
told here, so that no caller can take a backend away from others.

    one refused connection            -> passed over
    `circuit_refusals` in a row       -> open: its callers would wait for nothing
    `circuit_failures` of the last
    `circuit_window` calls            -> passed over: it may be the calls
    probes that reach nothing         -> open, until one does
    probes that get no good answer    -> passed over, until one does
"""

from enum import IntEnum, StrEnum

from apps.gateway.plane.core.config import GatewayConfig


class Failure(StrEnum):
    """How a replica failed a call. What the caller did wrong, and a 4xx about it, is none of these."""

    REFUSED = "refused"  # no connection came about
    CLOSED = "closed"  # the connection ended before any byte of a response
    BROKEN = "broken"  # it ended in the middle of one, or what came was not HTTP
    TIMEOUT = "timeout"  # one of the engine's deadlines passed
    ERROR = "error"  # the engine answered with 5xx
    CREDENTIAL = "credential"  # it did not accept the gateway's own, so no call gets anything there


class Verdict(IntEnum):
    FREE = 0  # takes calls
    TRIAL = 1  # takes one, to see
    PASSED = 2  # takes calls that no other can
    OPEN = 3  # takes none


WORDS = {
    Verdict.FREE: "closed",
    Verdict.TRIAL: "half_open",
    Verdict.PASSED: "passed_over",
    Verdict.OPEN: "open",
}


class Circuit:
    """Of one attempt of one backend, made when it first fails. Times in seconds of any one clock."""

    __slots__ = (
        "_bad_probes",
        "_config",
        "_outcomes",
        "_pause_s",
        "_probed_as",
        "_refusals",
        "_strict",
        "_trying",
        "_until",
        "attempt",
    )

    def __init__(self, attempt: int, config: GatewayConfig) -> None:
        self.attempt = attempt
        self._config = config
        self._outcomes: list[bool] = []  # of the last calls, True = failed
        self._refusals = 0
        self._until: float | None = None  # None = nothing stands against it
        self._strict = False
        self._pause_s = config.sideline_s
        self._trying = False
        self._bad_probes = 0
        self._probed_as = Verdict.FREE

    def verdict(self, now: float) -> Verdict:
        if self._probed_as is not Verdict.FREE:
            return self._probed_as
        if self._until is None:
            return Verdict.FREE
        if now < self._until or self._trying:
            return Verdict.OPEN if self._strict else Verdict.PASSED
        return Verdict.TRIAL

    def is_idle(self) -> bool:
        """Whether it knows nothing that is worth keeping."""
        clean = self._until is None and self._bad_probes == 0 and not self._refusals
        return clean and not any(self._outcomes)

    def wants_trial(self, now: float) -> bool:
        """Whether a call that goes there now is the one that tries it."""
        return self._until is not None and now >= self._until and not self._trying

    def begin_trial(self) -> None:
        self._trying = True

    def end_trial(self) -> None:
        """The call that tried it is over; where it said neither, the next one tries."""
        self._trying = False

    def succeed(self, *, trial: bool) -> None:
        """It has answered. One that is passed over for many failures comes back by its trial alone."""
        self._note(failed=False)
        self._refusals = 0
        self._bad_probes, self._probed_as = 0, Verdict.FREE
        if self._until is not None and (trial or self._strict or self._is_mended()):
            self._close()

    def fail(self, kind: Failure, now: float) -> None:
        self._note(failed=True)
        self._trying = False
        if kind is Failure.REFUSED:
            self._refusals += 1
            self._open(now, strict=self._refusals >= self._config.circuit_refusals)
        elif (self._until is not None and now >= self._until) or not self._is_mended():
            self._open(now, strict=False)

    def probe(self, *, reached: bool, well: bool) -> None:
        """What an active probe saw: whether the backend could be reached, and whether it said it is well."""
        if reached and well:
            self._bad_probes, self._refusals, self._probed_as = 0, 0, Verdict.FREE
            # While nothing stands against it, what calls suffered is kept: probes may like what calls don't.
            if self._until is not None and (self._strict or self._is_mended()):
                self._close()
            return
        self._bad_probes += 1
        if self._bad_probes >= self._config.probe_failures:
            self._probed_as = Verdict.PASSED if reached else Verdict.OPEN

    def _note(self, *, failed: bool) -> None:
        self._outcomes.append(failed)
        del self._outcomes[: -self._config.circuit_window]

    def _is_mended(self) -> bool:
        return sum(self._outcomes) < self._config.circuit_failures

    def _open(self, now: float, *, strict: bool) -> None:
        """Each pause after a trial that failed is twice the one before, up to a limit. One that gets no call
        at all is tried after a short one each time: where nobody stands in for it, a longer one refuses its
        callers when it has long been back."""
        if strict and not self._strict:
            self._pause_s = self._config.circuit_pause_s
            self._until = now + self._pause_s
        elif self._until is None or now >= self._until:
            if self._until is not None and not strict:
                self._pause_s = min(self._pause_s * 2, self._config.circuit_pause_max_s)
            self._until = now + self._pause_s
        self._strict = strict

    def _close(self) -> None:
        self._until, self._strict, self._trying = None, False, False
        self._pause_s = self._config.sideline_s
        self._outcomes.clear()
