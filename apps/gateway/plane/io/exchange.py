"""One admitted call: replica, request, answer, record.

Owns the order that GW-12 asks for: the record is appended before the last bytes are handed over,
once, whatever happens. Never touches the database.
"""

import asyncio
import logging
from collections.abc import Awaitable
from time import monotonic

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import Answer, read_answer, rejects_usage_option
from apps.gateway.plane.core.blame import ending_of
from apps.gateway.plane.core.choice import Choice, Failure
from apps.gateway.plane.core.request import build_upstream_body
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.core.told import REFUSES_US
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.course import CLIENT_GONE_STATUS, Course
from apps.gateway.plane.io.off_loop import work_aside
from apps.gateway.plane.io.upstream import Connection, Unreachable
from apps.gateway.plane.io.waiting import HEARTBEAT
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
MAX_ERROR_BYTES = 64 * 1024


class Exchange(Course):
    """`run` answers the caller, in a task of its own. Cancel that when the caller is gone; set `stopping`
    first when the gateway itself ends the call.

    Some of it may have been done before (straight.py): a replica chosen, asked, part of its stream passed on.
    """

    async def run(self) -> None:
        self.task = asyncio.current_task()
        self._parts.watch.add(self)
        try:
            try:
                await self._serve()
            except errors.CallError as fault:
                await self._fail(fault)
            except asyncio.CancelledError:
                if not self._late:
                    raise
                await self._time_out()
            except Exception:
                log.exception("call %s failed inside the gateway", self._facts.request_id)
                await self._fail(errors.internal())
        except asyncio.CancelledError:
            if self.stopping:
                stopping = errors.stopping(self._parts.config.retry_after_s)
                self._settle(Ending.UPSTREAM_ERROR, self._sent_status(stopping.status))
                await self._tell(stopping)
            else:
                self._settle(Ending.CLIENT_GONE, self._sent_status(CLIENT_GONE_STATUS))
            raise
        finally:
            self._parts.watch.drop(self)

    # ---- finding a replica ----

    async def _serve(self) -> None:
        choosing = self._parts.choosing
        tried: set[str] = set()
        for _ in range(self._parts.config.backend_tries):
            choice = self._choice
            if choice is None:
                asked = (self._call, self._key, self._pins, tried)
                choice = choosing.enter(*asked) or await choosing.find(*asked)
                self._enter(choice)
            try:
                if self._late:  # handed over for this
                    raise asyncio.CancelledError
                await self._open(choice, fresh=bool(tried))
                if self._call.prompt_tokens is not None:
                    self._call.fields.clear()  # megabytes that a long stream needn't hold
                    if self.kept is not None:  # an engine may answer before it has read all
                        unsent = 0 if self._response is None else self._response.unsent
                        self.kept.resize(min(self.kept.size, unsent))
                await self._pass_on(choice)
                if self._scanner is not None:
                    self._blame(choice, self._scanner.fault)
                return
            except Unreachable as failure:
                # Nothing was sent to the caller and no byte came back, so it is safe to repeat (GW-10).
                tried.add(choice.replica.task_id)
                kind = Failure.REFUSED if failure.refused else Failure.CLOSED
                meters.count_upstream(kind.value)
                choosing.failed(choice, kind)
            except errors.CallError as fault:
                self._blame(choice, fault)
                raise
            except asyncio.CancelledError:
                if self._late and self._waiting_for[0] != "caller":
                    choosing.failed(choice, Failure.TIMEOUT)
                raise
            finally:
                self._close()
                self._leave(choice)
        raise errors.upstream_unreachable()

    async def _open(self, choice: Choice, *, fresh: bool) -> None:
        """The response of the replica, its body unread. Raises Unreachable or CallError."""
        replica = choice.replica
        if self._scanner is not None:
            return
        if self._response is None:
            self._expect("answer", self._parts.config.first_byte_timeout_s)
        self._served_name = replica.served_model_name or await self._parts.upstream.served_name(replica)
        response = await self._post(choice, ask_usage=True, fresh=fresh)
        if response.status in (400, 422) and self._call.stream and not self._call.wants_usage:
            body = await self._read_error(response)
            if not rejects_usage_option(response.status, body):
                raise self._refusal(response, body)
            self._close()
            response = await self._post(choice, ask_usage=False, fresh=fresh)
        # 501: it doesn't offer this call
        if response.status == 501 or (response.status < 500 and response.status not in REFUSES_US):
            self._parts.choosing.succeeded(choice)

    async def _post(self, choice: Choice, *, ask_usage: bool, fresh: bool) -> Connection:
        upstream, replica = self._parts.upstream, choice.replica
        body = build_upstream_body(self._call, self._served_name, ask_usage=ask_usage)
        asked = (self._call.path, self._facts.request_id, self.carried, body)
        response = self._response
        if response is None and not fresh:
            self._response = response = upstream.kept(replica)
            if response is not None:
                response.post(*asked)
        if response is not None:
            try:
                await response.head()
                return response
            except Unreachable:
                # It was ended by the other side while this was on its way, which says nothing against the
                # replica: where no byte came back it is sent once more on a new one.
                self._close()
        self._response = response = await upstream.connect(replica)
        response.post(*asked)
        await response.head()
        return response

    # ---- passing the answer on ----

    async def _pass_on(self, choice: Choice) -> None:
        response = self._response
        if response is None:
            raise RuntimeError("nothing was asked")
        if response.status != 200:
            if response.status == 404:
                self._parts.upstream.forget_name(choice.replica)
            raise self._refusal(response, await self._read_error(response))
        if response.content_type.startswith(b"text/event-stream"):
            await self._pass_stream(response)
        else:
            await self._pass_whole(response)

    async def _pass_whole(self, response: Connection) -> None:
        body = response.whole()
        if body is None:
            pieces: list[bytes] = []
            await response.pump(lambda piece: self._gather(pieces, piece))
            body = b"".join(pieces)
        small = len(body) < self._parts.config.big_body_bytes
        answer = read_answer(body, self._call.model) if small else await self._parse_big(body)
        self._settle_whole(answer)
        self._expect_caller()
        if (owed := self._reply.whole(200, answer.body)) is not None:
            await owed

    def _gather(self, pieces: list[bytes], piece: bytes) -> None:
        config = self._parts.config
        pieces.append(piece)
        self._length += len(piece)
        if self._length > config.max_answer_bytes:
            raise errors.upstream_unreadable(f"is longer than {config.max_answer_bytes} bytes")
        self._expect("next part", config.gap_timeout_s)

    async def _parse_big(self, body: bytes) -> Answer:
        return await work_aside(self._parts.big_bodies, lambda: read_answer(body, self._call.model))

    async def _pass_stream(self, response: Connection) -> None:
        scanner = self._scanner
        if scanner is None:
            scanner = self._scan()
        elif scanner.ended:
            if (owed := self._end_stream(scanner, self._unsent)) is not None:
                await owed
        elif self._owed is not None:
            await self._sent(self._owed)
        try:
            await response.pump(self._pass_events)
        except errors.CallError:
            if not scanner.done:
                raise
            log.debug("call %s: the replica's connection broke after its [DONE]", self._facts.request_id)
        if not scanner.ended and (owed := self._end_stream(scanner, scanner.close())) is not None:
            await owed

    def _pass_events(self, chunk: bytes) -> Awaitable[None] | None:
        """Events go out as they come; called without a step of the loop between."""
        scanner = self._scanner
        if scanner is None or scanner.ended:
            return None  # what comes after [DONE] is the end of the HTTP message only
        out = scanner.feed(chunk)
        if self._facts.ttft_ms is None and scanner.pieces:
            self._facts.ttft_ms = self._settlement.elapsed_ms()
        if scanner.ended:
            return self._end_stream(scanner, out)
        if out and (owed := self._reply.stream(out)) is not None:
            return self._sent(owed)
        self._expect("next event", self._parts.config.gap_timeout_s, self._beat_s)
        return None

    async def _sent(self, owed: Awaitable[None]) -> None:
        self._expect_caller()
        await owed
        self._expect("next event", self._parts.config.gap_timeout_s, self._beat_s)

    def _end_stream(self, scanner: StreamScanner, out: bytes) -> Awaitable[None] | None:
        """The record, and then the last bytes. Of the response only the end of its message may be missing."""
        if scanner.fault is not None and not self._reply.started and not scanner.pieces:
            raise scanner.fault
        self._settle(ending_of(scanner.fault), 200)
        owed = self._reply.stream(out, last=True)
        if scanner.fault is not None and self._response is not None:
            self._response.stop()
        if owed is not None:
            return self._sent_last(owed)
        self._expect("end", self._parts.config.tail_timeout_s)
        return None

    async def _sent_last(self, owed: Awaitable[None]) -> None:
        self._expect_caller()
        await owed
        self._expect("end", self._parts.config.tail_timeout_s)

    # ---- deadlines ----

    def overdue(self) -> None:
        if monotonic() < self._late_at:
            self._beat()
        elif self._scanner is not None and self._scanner.done and self._waiting_for[0] != "caller":
            # All was said but the end of the HTTP message: its connection is dropped, nothing else.
            if self._response is not None:
                self._response.stop()
        else:
            self._late = True
            if self.task is not None:
                self.task.cancel()

    def _beat(self) -> None:
        """A comment between two whole events, where nothing else is under way to the caller. No word of the
        engine: it moves no deadline and is counted nowhere."""
        waiting_for, late_at = self._waiting_for, self._late_at
        self._expect_as_before(waiting_for, late_at)
        response, scanner = self._response, self._scanner
        if response is None or scanner is None or not (response.waited_for and scanner.between_events):
            return
        owed = self._reply.stream(HEARTBEAT)
        if owed is not None:
            response.hold(self._sent_beat(owed, waiting_for, late_at))

    async def _sent_beat(self, owed: Awaitable[None], waiting_for: tuple[str, float], late_at: float) -> None:
        self._expect_caller()
        await owed
        self._expect_as_before(waiting_for, late_at)

    async def _read_error(self, response: Connection) -> bytes:
        self._expect("error", self._parts.config.gap_timeout_s)
        body = bytearray()

        def take(piece: bytes) -> None:
            body.extend(piece)
            if len(body) >= MAX_ERROR_BYTES:
                response.stop()

        await response.pump(take)
        return bytes(body[:MAX_ERROR_BYTES])

    # ---- endings other than a whole answer ----

    async def _time_out(self) -> None:
        self._late = False
        what, limit_s = self._waiting_for
        if what == "caller":
            self._settle(Ending.CLIENT_GONE, self._sent_status(CLIENT_GONE_STATUS))
            return
        meters.count_upstream("timeout")
        await self._fail(errors.upstream_timeout(what, limit_s))

    async def _fail(self, fault: errors.CallError) -> None:
        if fault.code == "upstream_truncated":
            meters.count_upstream("truncated")
        self._settle(ending_of(fault), self._sent_status(fault.status))
        await self._tell(fault)

    async def _tell(self, fault: errors.CallError) -> None:
        """The fault as a status while nothing was sent, as an error event in a stream."""
        owed = None
        if self._reply.ended:
            return
        if not self._reply.started:
            owed = self._reply.error(fault)
        elif self._scanner is not None:
            owed = self._reply.stream(self._scanner.abort(lambda: fault), last=True)
        if owed is not None:
            self._expect_caller()
            await owed
