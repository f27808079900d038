"""Carries reports to the server in order, until each is acknowledged (AGENT-02, AGENT-14).

Owns the queue and the numbering within this incarnation. What is not acknowledged rests on disk too
(`reportfile.py`): the next run of the agent takes it up, in its order and under its own numbers. Never drops
a report because the server is away; one that the server refuses (malformed, or on a placement that is not
this node's any more) is dropped alone, with a line in the log, so that it cannot block those behind it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from agent.contract.codes import Code, Reason
from agent.contract.messages import ReportReply, ReportRequest, RunningReport, TaskReport
from agent.contract.states import Observed, Phase
from agent.errors import ServerRefused, ServerUnreachable
from agent.link.reportfile import ReportFile

log = logging.getLogger("agent.link")
BATCH = 100
MALFORMED = (400, 413, 422)
TELLS_OF_AN_END = (Observed.UNHEALTHY, Observed.EXITED, Observed.GONE)


class ReportQueue:
    """`add` never blocks; `run` sends, where it is `held` only from `release` on: a report of a run that the
    server has not heard of yet counts for nothing."""

    def __init__(
        self,
        incarnation: str,
        send: Callable[[ReportRequest], Awaitable[ReportReply]],
        *,
        file: ReportFile | None = None,
        held: bool = False,
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
        self._file = file
        self._whole = True  # the file holds all that waits
        self._trouble = ""
        self._released = asyncio.Event()
        if not held:
            self._released.set()
        self._batch = BATCH
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._take_up()
        self._earlier = self._sequence  # up to here they are of an earlier run

    def _take_up(self) -> None:
        """Queue again what an earlier run left."""
        if self._file is None:
            return
        for report in self._file.load():
            self._sequence += 1
            self._waiting.append(msgspec.structs.replace(report, sequence=self._sequence))
        self._whole = False  # under its former numbers
        if self._waiting:
            log.info("%d reports of an earlier run are taken up", len(self._waiting))
            self._empty.clear()
            self._more.set()
        self._keep(lambda file: None)

    def release(self) -> None:
        """The server knows this run: send from now on."""
        self._released.set()

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
        report = TaskReport(
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
        self._waiting.append(report)
        self._keep(lambda file: file.append(report))
        self._empty.clear()
        self._more.set()

    def __len__(self) -> int:
        """Reports that are not acknowledged yet."""
        return len(self._waiting)

    def waiting(self, task_id: str, attempt: int) -> bool:
        """Whether a report on this attempt is not acknowledged yet."""
        return any(r.task_id == task_id and r.attempt == attempt for r in self._waiting)

    def with_earlier(self, running: list[RunningReport]) -> list[RunningReport]:
        """The list for a heartbeat, with the attempts of an earlier run whose end waits to be told. Where one
        were missing from it, the server would conclude that its agent took it along, and never hear how it
        ended."""
        named = {(one.task_id, one.attempt) for one in running}
        ends: dict[tuple[str, int], RunningReport] = {}
        for report in itertools.takewhile(lambda one: one.sequence <= self._earlier, self._waiting):
            key = report.task_id, report.attempt
            if key not in named and report.observed in TELLS_OF_AN_END:
                ends[key] = RunningReport(*key, report.observed)
        return [*running, *ends.values()]

    async def run(self) -> None:
        """Send for ever."""
        await self._released.wait()
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
        await self._bring_to_disk()
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
            self._acknowledged(reply.up_to_sequence)
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
        self._acknowledged(dropped.sequence)
        known = error.code == Code.NOT_THIS_NODES  # after a deletion, for instance
        log.log(
            logging.INFO if known else logging.ERROR,
            "the server does not take the report on %s.%d: %s",
            *(dropped.task_id, dropped.attempt, error),
        )
        self._batch = BATCH

    # --- on disk ----------------------------------------------------------------------------------

    def _acknowledged(self, up_to: int) -> None:
        self._keep(lambda file: file.acknowledge(up_to, self._waiting, size=len(self._waiting)))

    def _keep(self, write: Callable[[ReportFile], None]) -> None:
        """Write to the file. A disk that takes nothing costs nothing as long as this run lives: the reports
        are here, and the whole file is written at the next chance."""
        if self._file is None:
            return
        try:
            if self._whole:
                self._whole = False
                write(self._file)
            else:
                self._file.rewrite(self._waiting)
            self._whole = True
        except OSError as error:
            self._tell(f"reports can't be kept on disk: {error.strerror}; they would be lost with this run")
        else:
            self._tell("")

    async def _bring_to_disk(self) -> None:
        if self._file is None:
            return
        if not self._whole:
            self._keep(lambda file: None)
        try:
            fd = self._file.unsynced()
            if fd is not None:
                await asyncio.to_thread(_sync, fd)
        except OSError as error:
            self._tell(f"reports can't be brought to the disk: {error.strerror}")

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.error("%s", trouble)
        self._trouble = trouble


def _sync(fd: int) -> None:
    """Raises OSError."""
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
