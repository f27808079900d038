"""Settles a call: one record, appended before the last bytes of its answer go out (GW-12)."""

import logging
import time
from typing import Protocol

import msgspec

from apps.core.request_id import request_id
from apps.gateway.plane.core.request import Call
from apps.gateway.plane.core.usage import CallFacts, settle
from apps.gateway.plane.io import meters
from apps.usage.record import Ending, UsageEntry

log = logging.getLogger("heteroflow.gateway")


class RecordWriter(Protocol):
    def append(self, entry: UsageEntry) -> bool: ...

    def put(self, entry: UsageEntry) -> None: ...


class Settlement(msgspec.Struct):
    """Settles a call exactly once; later attempts do nothing."""

    _journal: RecordWriter
    facts: CallFacts
    call: Call | None = None
    settled: bool = False
    _begun: float = msgspec.field(default_factory=time.monotonic)

    def elapsed_ms(self) -> int:
        return round((time.monotonic() - self._begun) * 1000)

    def settle(self, ending: Ending, http_status: int, *, whole: bool = False, put: bool = False) -> None:
        """`whole`: of this answer the first content was there with the last. With `put` the record is laid
        ready: the caller's connection writes it before the last bytes."""
        if self.settled:
            return
        self.settled = True
        facts, duration_ms = self.facts, self.elapsed_ms()
        if whole:
            facts.ttft_ms = duration_ms
        entry = settle(facts, ending, http_status=http_status, duration_ms=duration_ms, call=self.call)
        if put:
            self._journal.put(entry)
        else:
            self._journal.append(entry)
        meters.count_call(entry)
        level = logging.DEBUG if ending is Ending.COMPLETED else logging.INFO
        if not log.isEnabledFor(level):
            return
        # The end of a stream is told by its connection, which may have been made for another call.
        mine = request_id.set(entry.request_id)
        log.log(
            level,
            "call %s key=%s path=%s task=%s ended %s status=%d after %d ms",
            entry.request_id,
            entry.key_prefix,
            entry.path,
            entry.task_id,
            ending.value,
            http_status,
            entry.duration_ms,
        )
        request_id.reset(mine)
