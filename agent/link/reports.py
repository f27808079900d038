"""Carries reports to the server in order, until each is acknowledged (AGENT-02, AGENT-14).

Owns the queue (in memory) and the numbering within this incarnation. Never drops a report because
the server is away; one that the server refuses (malformed, or on a placement that is not this node's
any more) is dropped alone, with a line in the log, so that it cannot block those behind it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from agent.contract.codes import Code, Reason
from agent.contract.messages import ReportReply, ReportRequest, TaskReport
from agent.contract.states import Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable

log = logging.getLogger("agent.link")
BATCH = 100
MALFORMED = (400, 413, 422)


class ReportQueue:
    """`add` never blocks; `run` sends."""

    def __init__(
        self,
        incarnation: str,
        send: Callable[[ReportRequest], Awaitable[ReportReply]],
        *,
        wall: Callable[[], float] = time.time,
        first_pause_s: float = 0.2,
        max_pause_s: float = 15.0,
    ) -> None:
        self._incarnation = incarnation
        self._send = send
        self._wall = wall
        self._pauses = (first_pause_s, max_pause_s)
        self._waiting: deque[TaskReport] = deque()
        self._sequence = 0
        self._batch = BATCH
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

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
        """Put one report at the end of the queue."""
        self._sequence += 1
        self._waiting.append(
            TaskReport(
                sequence=self._sequence,
                task_id=task_id,
                attempt=attempt,
                phase=phase,
                observed=observed,
                reason=why,
                exit_code=exit_code,
                last_log_lines=last_log_lines or [],
                happened_at=self._wall(),
                notes=notes or [],
            )
        )
        self._empty.clear()
        self._more.set()

    def __len__(self) -> int:
        """Reports that are not acknowledged yet."""
        return len(self._waiting)

    def waiting(self, task_id: str, attempt: int) -> bool:
        """Whether a report on this attempt is not acknowledged yet."""
        return any(r.task_id == task_id and r.attempt == attempt for r in self._waiting)

    async def run(self) -> None:
        """Send for ever."""
        while True:
            await self._more.wait()
            async for turn in AsyncRetrying(
                retry=retry_if_exception_type((ServerUnreachable, ServerRefused)),
                wait=wait_exponential_jitter(multiplier=self._pauses[0], max=self._pauses[1]),
                before_sleep=lambda state: log.warning(
                    "%d reports wait: %s", len(self._waiting), state.outcome and state.outcome.exception()
                ),
            ):
                with turn:
                    await self._send_some()

    async def drained(self, timeout_s: float) -> bool:
        """Wait until all were acknowledged; False when that took too long."""
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def _send_some(self) -> None:
        some = [self._waiting[i] for i in range(min(self._batch, len(self._waiting)))]
        if some:
            try:
                reply = await self._send(ReportRequest(incarnation=self._incarnation, reports=some))
            except ServerRefused as error:
                if error.status not in MALFORMED and error.code != Code.NOT_THIS_NODES:
                    raise
                self._single_out(some, error)
                return
            self._batch = BATCH
            before = len(self._waiting)
            while self._waiting and self._waiting[0].sequence <= reply.up_to_sequence:
                self._waiting.popleft()
            if len(self._waiting) == before:
                raise ServerUnreachable("the server acknowledged none of the reports")
        if not self._waiting:
            self._more.clear()
            self._empty.set()

    def _single_out(self, some: list[TaskReport], error: ServerRefused) -> None:
        """Find the refused one by sending them singly, and drop only that."""
        if len(some) > 1:
            self._batch = 1
            return
        dropped = self._waiting.popleft()
        known = error.code == Code.NOT_THIS_NODES  # after a deletion, for instance
        log.log(
            logging.INFO if known else logging.ERROR,
            "the server does not take the report on %s.%d: %s",
            *(dropped.task_id, dropped.attempt, error),
        )
        self._batch = BATCH
