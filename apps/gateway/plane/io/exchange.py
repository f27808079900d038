"""One admitted call: replica, request, answer, record.

Owns the order that GW-12 asks for: the record is appended before the last bytes are handed over,
once, whatever happens. Never touches the database.
"""

import asyncio
import logging

import aiohttp
import msgspec

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import Answer, read_answer, read_upstream_error, rejects_usage_option
from apps.gateway.plane.core.choice import Choice, Failure, Pins
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import Call, build_upstream_body, estimate_prompt_tokens
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.settlement import RecordWriter, Settlement
from apps.gateway.plane.io.upstream import Unreachable, Upstream
from apps.routing.table import Key
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
MAX_ERROR_BYTES = 64 * 1024
CLIENT_GONE_STATUS = 499


class Parts(msgspec.Struct, frozen=True):
    """What all calls of a gateway share."""

    config: GatewayConfig
    upstream: Upstream
    choosing: Choosing
    journal: RecordWriter
    big_bodies: asyncio.Semaphore


class Exchange:
    """`run` answers the caller. Cancel its task when the caller is gone; set `stopping` first when
    the gateway itself ends the call."""

    def __init__(
        self, parts: Parts, key: Key, call: Call, pins: Pins, settlement: Settlement, reply: Reply
    ) -> None:
        self._parts = parts
        self._key = key
        self._call = call
        self._pins = pins
        self._settlement = settlement
        self._facts = settlement.facts
        self._reply = reply
        self._scanner: StreamScanner | None = None
        self._served_name = call.model
        self._waiting_for = ("answer", parts.config.first_byte_timeout_s)
        self.stopping = False
        settlement.estimate_prompt = lambda: estimate_prompt_tokens(call)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._ends_at = loop.time() + self._parts.config.total_timeout_s
        try:
            async with asyncio.timeout(None) as self._alarm:
                await self._serve()
        except TimeoutError:
            await self._time_out()
        except errors.CallError as fault:
            await self._fail(fault)
        except asyncio.CancelledError:
            if self.stopping:
                self._settlement.settle(Ending.UPSTREAM_ERROR, self._sent_status(503))
                await self._tell(errors.stopping(self._parts.config.retry_after_s))
            else:
                self._settlement.settle(Ending.CLIENT_GONE, self._sent_status(CLIENT_GONE_STATUS))
            raise
        except Exception:
            log.exception("call %s failed inside the gateway", self._facts.request_id)
            await self._fail(errors.internal())

    # ---- finding a replica ----

    async def _serve(self) -> None:
        choosing = self._parts.choosing
        tried: set[str] = set()
        for last in (False, True):
            choice = await choosing.find(self._call, self._key, self._pins, tried)
            meters.enter(self._call.model)
            try:
                self._note(choice)
                response = await self._open(choice, fresh=last)
                try:
                    if self._call.prompt_tokens is not None:
                        self._call.fields.clear()  # megabytes that a long stream needn't hold
                    await self._pass_on(choice, response)
                finally:
                    # A response that was not read to its end closes its connection (GW-09).
                    response.close()
                return
            except Unreachable as failure:
                # Nothing was sent to the caller and no byte came back, so it is safe to repeat (GW-10).
                tried.add(choice.replica.task_id)
                kind = Failure.REFUSED if failure.refused else Failure.CLOSED
                meters.count_upstream(kind.value)
                choosing.failed(choice, kind)
            finally:
                choosing.leave(choice)
                meters.leave(self._call.model)
        raise errors.upstream_unreachable()

    def _note(self, choice: Choice) -> None:
        """The record names the backend that was tried last."""
        facts = self._facts
        facts.route_id, facts.group_id = choice.route.route_id, choice.route.group_id
        facts.task_id, facts.attempt = choice.replica.task_id, choice.replica.attempt

    async def _open(self, choice: Choice, *, fresh: bool) -> aiohttp.ClientResponse:
        """The response of the replica, its body unread. Raises Unreachable or CallError."""
        upstream, replica = self._parts.upstream, choice.replica
        self._expect("answer", self._parts.config.first_byte_timeout_s)
        self._served_name = await upstream.served_name(replica)
        response = await self._post(choice, ask_usage=True, fresh=fresh)
        if response.status in (400, 422) and self._call.stream and not self._call.wants_usage:
            try:
                body = await self._read_error(response)
            finally:
                response.close()
            if not rejects_usage_option(response.status, body):
                raise self._refusal(response, body)
            response = await self._post(choice, ask_usage=False, fresh=fresh)
        self._parts.choosing.succeeded(choice)
        return response

    async def _post(self, choice: Choice, *, ask_usage: bool, fresh: bool) -> aiohttp.ClientResponse:
        body = build_upstream_body(self._call, self._served_name, ask_usage=ask_usage)
        headers = {"X-Request-ID": self._facts.request_id}
        return await self._parts.upstream.post(
            choice.replica, self._call.path, body, headers=headers, fresh=fresh
        )

    # ---- passing the answer on ----

    async def _pass_on(self, choice: Choice, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            if response.status == 404:
                self._parts.upstream.forget_name(choice.replica)
            raise self._refusal(response, await self._read_error(response))
        if response.content_type == "text/event-stream":
            await self._pass_stream(response)
        else:
            await self._pass_whole(response)

    async def _pass_whole(self, response: aiohttp.ClientResponse) -> None:
        config = self._parts.config
        body = bytearray()
        while piece := await self._read(response):
            body += piece
            if len(body) > config.max_answer_bytes:
                raise errors.upstream_unreadable(f"is longer than {config.max_answer_bytes} bytes")
            self._expect("next part", config.gap_timeout_s)
        self._facts.ttft_ms = self._settlement.elapsed_ms()
        answer = await self._parse(bytes(body))
        self._facts.usage, self._facts.delivered = answer.usage, answer.text_tokens
        self._settlement.settle(Ending.COMPLETED, 200)
        self._expect_caller()
        await self._reply.whole(200, answer.body)

    async def _parse(self, body: bytes) -> Answer:
        if len(body) < self._parts.config.big_body_bytes:
            return read_answer(body, self._call.model)
        async with self._parts.big_bodies:
            return await asyncio.to_thread(read_answer, body, self._call.model)

    async def _pass_stream(self, response: aiohttp.ClientResponse) -> None:
        config, facts = self._parts.config, self._facts
        scanner = self._scanner = StreamScanner(
            self._call.model, hide_usage=not self._call.wants_usage, max_event_bytes=config.max_event_bytes
        )
        self._expect("first event", config.first_byte_timeout_s)
        while True:
            chunk = await self._read(response)
            out = scanner.feed(chunk) if chunk else scanner.close()
            facts.usage = scanner.usage
            if facts.ttft_ms is None and scanner.pieces:
                facts.ttft_ms = self._settlement.elapsed_ms()
            if scanner.ended:
                break
            if out:
                self._expect_caller()
                if not self._reply.started:
                    await self._reply.begin_stream()
                await self._reply.piece(out)
            facts.delivered = scanner.pieces
            self._expect("next event", config.gap_timeout_s)
        facts.delivered = scanner.pieces
        if scanner.fault is not None and not self._reply.started and not scanner.pieces:
            raise scanner.fault
        self._settlement.settle(_ending(scanner.fault), 200)
        self._expect_caller()
        if not self._reply.started:
            await self._reply.begin_stream()
        await self._reply.piece(out, last=True)
        if scanner.done:
            await self._read_tail(response)

    async def _read_tail(self, response: aiohttp.ClientResponse) -> None:
        """Reads the end of the HTTP message, so that its connection can serve again."""
        self._alarm.reschedule(None)
        try:
            async with asyncio.timeout(self._parts.config.tail_timeout_s):
                while await response.content.readany():
                    pass
        except (TimeoutError, aiohttp.ClientError):
            log.debug("call %s: the replica's connection is dropped after its [DONE]", self._facts.request_id)

    # ---- reading with deadlines ----

    def _expect(self, what: str, within_s: float) -> None:
        """Sets the alarm for the engine; `what` names it in the error."""
        self._waiting_for = (what, within_s)
        now = asyncio.get_running_loop().time()
        if now + within_s > self._ends_at:
            self._waiting_for = ("end", self._parts.config.total_timeout_s)
        self._alarm.reschedule(min(now + within_s, self._ends_at))

    def _expect_caller(self) -> None:
        """Sets the alarm for a caller that doesn't read."""
        within_s = self._parts.config.client_write_timeout_s
        self._waiting_for = ("caller", within_s)
        self._alarm.reschedule(asyncio.get_running_loop().time() + within_s)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The next bytes, empty at the end. Raises CallError when the connection broke."""
        try:
            return await response.content.readany()
        except (aiohttp.ClientError, ConnectionError):
            meters.count_upstream("truncated")
            raise errors.upstream_truncated() from None

    async def _read_error(self, response: aiohttp.ClientResponse) -> bytes:
        self._expect("error", self._parts.config.gap_timeout_s)
        body = bytearray()
        while len(body) < MAX_ERROR_BYTES and (piece := await self._read(response)):
            body += piece
        return bytes(body[:MAX_ERROR_BYTES])

    # ---- endings other than a whole answer ----

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes) -> errors.CallError:
        meters.count_upstream(f"status_{response.status // 100}xx")
        return read_upstream_error(
            response.status,
            body,
            retry_after=response.headers.get("Retry-After"),
            served_name=self._served_name,
            model=self._call.model,
            retry_after_s=self._parts.config.retry_after_s,
        )

    async def _time_out(self) -> None:
        what, limit_s = self._waiting_for
        if what == "caller":
            self._settlement.settle(Ending.CLIENT_GONE, self._sent_status(CLIENT_GONE_STATUS))
            return
        meters.count_upstream("timeout")
        await self._fail(errors.upstream_timeout(what, limit_s))

    async def _fail(self, fault: errors.CallError) -> None:
        self._settlement.settle(_ending(fault), self._sent_status(fault.status))
        await self._tell(fault)

    async def _tell(self, fault: errors.CallError) -> None:
        """The fault as a status while nothing was sent, as an error event in a stream."""
        if self._reply.ended:
            return
        if not self._reply.started:
            await self._reply.error(fault)
        elif self._scanner is not None:
            await self._reply.piece(self._scanner.abort(lambda: fault), last=True)

    def _sent_status(self, otherwise: int) -> int:
        return 200 if self._reply.started else otherwise


def _ending(fault: errors.CallError | None) -> Ending:
    if fault is None:
        return Ending.COMPLETED
    if fault.code in ("no_backend", "backend_busy"):
        return Ending.NO_BACKEND
    return Ending.UPSTREAM_TRUNCATED if fault.code == "upstream_truncated" else Ending.UPSTREAM_ERROR
