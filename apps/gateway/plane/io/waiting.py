"""What one call waits for, and until when: its engine or its caller. One deadline at a time, in the watch.

Owns how the deadlines of a call follow each other; what happens when one has passed is the call's business.
"""

from time import monotonic

import msgspec

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.watch import NEVER

HEARTBEAT = b": heartbeat\n\n"
"""A comment, which whoever reads events skips: the engine is silent and the connection is there."""


class Waiting(msgspec.Struct, eq=False, kw_only=True):
    """`due` is when the watch looks next: at `_late_at`, from when on `_waiting_for` (what, seconds) is late,
    or, while an event is waited for, before it, when the caller should get a heartbeat."""

    _config: GatewayConfig = GatewayConfig()
    _beat_s: float = NEVER
    _ends_at: float = NEVER
    _late_at: float = NEVER
    _waiting_for: tuple[str, float] = ("answer", NEVER)
    due: float = NEVER

    def _begin_waiting(self, config: GatewayConfig) -> None:
        self._config = config
        self._ends_at = monotonic() + config.total_timeout_s
        self._beat_s = config.heartbeat_s or NEVER

    def _expect(self, what: str, within_s: float, beat_s: float = NEVER) -> None:
        """Sets the deadline of the engine; `what` names it in the error. With `beat_s`, which is `_beat_s`
        where an event is waited for, the caller gets heartbeats meanwhile."""
        now = monotonic()
        late_at = now + within_s
        if late_at > self._ends_at:
            what, within_s, late_at = "end", self._config.total_timeout_s, self._ends_at
        self._waiting_for = (what, within_s)
        self._late_at = late_at
        due = now + beat_s
        self.due = due if due < late_at else late_at

    def _expect_caller(self) -> None:
        """Sets the deadline of a caller that doesn't read."""
        within_s = self._config.client_write_timeout_s
        self._waiting_for = ("caller", within_s)
        self.due = self._late_at = monotonic() + within_s

    def _expect_as_before(self, waiting_for: tuple[str, float], late_at: float) -> None:
        """What was waited for is still to come, by the same deadline."""
        self._waiting_for, self._late_at = waiting_for, late_at
        self.due = min(monotonic() + self._beat_s, late_at)
