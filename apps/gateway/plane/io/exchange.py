"""One admitted call: replica, request, answer, record.

Owns the order that GW-12 asks for: the record is appended before the last bytes are handed over,
once, whatever happens. Never touches the database.
"""

import asyncio
import logging
import random

import aiohttp
import msgspec

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import Answer, read_answer, read_upstream_error, rejects_usage_option
from apps.gateway.plane.core.choice import Choice, choose
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import Call, build_upstream_body, estimate_prompt_tokens
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.live import LiveCounts
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.settlement import RecordWriter, Settlement
from apps.gateway.plane.io.tables import Tables
from apps.gateway.plane.io.upstream import Unreachable, Upstream
from apps.routing.table import Route
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
MAX_ERROR_BYTES = 64 * 1024
CLIENT_GONE_STATUS = 499


class Parts(msgspec.Struct, frozen=True):
    """What all calls of a gateway share."""

    config: GatewayConfig
    upstream: Upstream
    live: LiveCounts
    journal: RecordWriter
    tables: Tables
    rng: random.Random
    big_bodies: asyncio.Semaphore


class Exchange:
    """`run` answers the caller. Cancel its task when the caller is gone; set `stopping` first when
    the gateway itself ends the call."""

    def __init__(self, parts: Parts, call: Call, settlement: Settlement, reply: Reply) -> None:
        self._parts = parts
        self._call = call
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
        tried: set[str] = set()
        for last in (False, True):
            choice = self._enter(tried) or await self._called_back(tried)
            task_id, group_id = choice.replica.task_id, choice.route.group_id
            meters.enter(self._call.model)
            try:
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
                tried.add(task_id)
                meters.count_upstream("refused" if failure.refused else "closed")
                if failure.refused:
                    self._parts.live.sideline(task_id)
            finally:
                self._parts.live.leave(task_id, group_id)
                meters.leave(self._call.model)
        raise errors.upstream_unreachable()

    def _routes(self) -> tuple[Route, ...]:
        """Those of the present table, whatever it was when the call was admitted."""
        table = self._parts.tables.current
        of_tenant = {} if table is None else table.routes.get(self._facts.tenant_id, {})
        return of_tenant.get(self._call.model, ())

    def _enter(self, tried: set[str]) -> Choice | None:
        """Chooses a replica and counts the call there, in one step of the loop: a replica that is not in the
        present table gets no new call, which whoever stops it relies on. None = none can be had."""
        live, config = self._parts.live, self._parts.config
        choice = choose(
            self._routes(),
            in_flight=live.in_flight,
            turns=live.turns,
            rng=self._parts.rng,
            avoid=tried | live.sidelined(),
            limit=config.replica_connections,
        )
        if choice is None:
            return None
        live.enter(choice.replica.task_id, choice.route.group_id)
        facts = self._facts
        facts.route_id, facts.group_id = choice.route.route_id, choice.route.group_id
        facts.task_id, facts.attempt = choice.replica.task_id, choice.replica.attempt
        return choice

    async def _called_back(self, tried: set[str]) -> Choice:
        """Waits while a replica that has just left to sleep may be called back: that this call waits is what
        calls it back. Raises CallError where none is to be had."""
        live, config = self._parts.live, self._parts.config
        now = asyncio.get_running_loop().time
        until = now() + config.call_back_wait_s
        while True:
            routes = self._routes()
            groups = [route.group_id for route in routes]
            live.asked.update(groups)
            if any(route.replicas for route in routes):
                raise errors.backend_busy(self._call.model, config.retry_after_s)
            dozing = [route.group_id for route in routes if route.dozing]
            if not dozing or now() >= until:
                raise errors.no_backend(self._call.model, config.retry_after_s)
            live.hold(dozing)
            try:
                await self._parts.tables.changed(until - now())
            finally:
                live.let_go(dozing)
            if (choice := self._enter(tried)) is not None:
                return choice

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
        self._parts.live.welcome(replica.task_id)
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
