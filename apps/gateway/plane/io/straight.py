"""The course of nearly every call, without a task: each step is taken in what a socket calls (GW-15).

A known key, a small body, a kept connection, a good answer that its caller takes: such a call needs nobody
who waits. Owns those steps and when a call is none of these any more; it then goes on in a task, from where
it is, as any other (exchange.py).
"""

import logging
from collections.abc import Coroutine
from time import monotonic
from typing import Any, Protocol

import msgspec

from apps.core.request_id import request_id as present_id
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.admission import BACKEND_HEADER, SESSION_HEADER, VERSION_HEADER, hash_bearer
from apps.gateway.plane.core.answer import read_answer
from apps.gateway.plane.core.choice import Choice
from apps.gateway.plane.core.request import INFERENCE_PATHS, build_upstream_body, carry_trace
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.course import CLIENT_GONE_STATUS
from apps.gateway.plane.io.exchange import Exchange
from apps.gateway.plane.io.upstream import Connection
from apps.routing.table import Replica
from apps.usage.record import Ending

log = logging.getLogger("heteroflow.gateway")
_SPECIAL = (VERSION_HEADER, BACKEND_HEADER, SESSION_HEADER, b"content-encoding")


class Head(msgspec.Struct, frozen=True):
    """What the head of an ordinary request says: read once for all requests that have the same. `digest`: the
    key's; `offered`: the caller's own request id, "" = none; `carried`: header lines for the engine."""

    path: str
    digest: str
    offered: str
    carried: bytes


def read_head(asked: Asked) -> Head | None:
    """None where the request needs more than a look at its head: it goes the long way."""
    headers = asked.headers
    if asked.method != "POST" or asked.path not in INFERENCE_PATHS:
        return None
    if any(name in headers for name in _SPECIAL):
        return None
    try:
        digest = hash_bearer(headers.get(b"authorization"))
    except errors.CallError:
        return None
    offered = headers.get(b"x-request-id", b"").decode("latin-1")
    return Head(asked.path, digest, offered, carry_trace(headers))


class Carrier(Protocol):
    """Whoever has begun the call, and lends it a task where it needs one."""

    def carry(self, work: Coroutine[Any, Any, None], reply: Any) -> None: ...


class Straight(Exchange):
    """`begin`, then `came` by its connection, `gone` by its caller, `overdue` by the watch. `carrier` gets
    the call where it goes on in a task; None once it has."""

    carrier: Carrier | None = None

    def begin(self, choice: Choice) -> None:
        """Asks the replica that was chosen, or lets a task do so where that must wait."""
        self._enter(choice)
        parts, replica = self._parts, choice.replica
        parts.watch.add(self)
        response = parts.upstream.kept(replica) if replica.served_model_name else None
        if response is None:
            self._hand_over()
            return
        try:
            self._ask(response, replica)
        except Exception:
            log.exception("call %s failed inside the gateway", self._facts.request_id)
            self._close()
            self._hand_over()

    def _ask(self, response: Connection, replica: Replica) -> None:
        self._response = response
        self._served_name = replica.served_model_name
        response.follower = self
        self._expect("answer", self._parts.config.first_byte_timeout_s)
        body = build_upstream_body(self._call, self._served_name)
        response.post(self._call.path, self._facts.request_id, self.carried, body)

    def came(self) -> None:
        response, scanner = self._response, self._scanner
        if response is None:
            return
        try:
            if scanner is not None:
                self._follow(response, scanner, response.taken())
            elif response.status != 200:
                if response.over or response.status >= 200:
                    self._hand_over()
            elif response.content_type.startswith(b"text/event-stream"):
                self._begin_stream(response)
            else:
                self._pass_small(response)
        except Exception:
            log.exception("call %s failed inside the gateway", self._facts.request_id)
            if self._reply.ended:
                self._release()
            else:
                self._hand_over()

    def gone(self) -> None:
        self._settle(Ending.CLIENT_GONE, self._sent_status(CLIENT_GONE_STATUS))
        self._release()

    def overdue(self) -> None:
        if self.carrier is None:
            super().overdue()
        elif monotonic() < self._late_at:
            self.due = 0.0  # a heartbeat is due, which the task gives
            self._hand_over()
        elif self._scanner is not None and self._scanner.done:
            self._release()  # the end of the message is late, and nothing else
        else:
            self._late = True
            self._hand_over()

    def take_task(self) -> None:
        """Goes on in a task, or ends where nothing is left to be done."""
        if self._scanner is not None and self._scanner.done and self.carrier is not None:
            self._release()
        else:
            self._hand_over()

    # ---- the answer ----

    def _pass_small(self, response: Connection) -> None:
        body = response.whole()
        config = self._parts.config
        if body is None or len(body) >= config.big_body_bytes:
            if response.over or response.full:
                self._hand_over()
            else:
                self._expect("next part", config.gap_timeout_s)
            return
        try:
            answer = read_answer(body, self._call.model)
        except errors.CallError:
            self._hand_over()
            return
        self._succeed()
        self._settle_whole(answer, put=True)
        self._reply.whole(200, answer.body)
        self._release()

    def _begin_stream(self, response: Connection) -> None:
        pieces = response.taken()
        if not pieces:  # its first event may be long in coming
            self._hand_over()
            return
        self._succeed()
        self._follow(response, self._scan(), pieces)

    def _follow(self, response: Connection, scanner: StreamScanner, pieces: list[bytes]) -> None:
        """Passes on what has come of the stream."""
        if not scanner.ended:
            out = scanner.feed_all(pieces) if pieces else b""
            if self._facts.ttft_ms is None and scanner.pieces:
                self._facts.ttft_ms = self._settlement.elapsed_ms()
            if scanner.fault is not None:
                self._unsent = out
                self._hand_over()
                return
            if scanner.done:
                self._settle(Ending.COMPLETED, 200, put=True)
                self._reply.stream(out, last=True)
                self._expect("end", self._parts.config.tail_timeout_s)
            else:
                if out and (owed := self._reply.stream(out)) is not None:
                    self._owed = owed
                    self._hand_over()
                    return
                self._expect("next event", self._parts.config.gap_timeout_s, self._beat_s)
        if response.over:
            if scanner.ended:
                self._release()
            else:
                self._hand_over()

    # ---- its end here ----

    def _succeed(self) -> None:
        if self._choice is not None:
            self._parts.choosing.succeeded(self._choice)

    def _release(self) -> None:
        response, choice, parts = self._response, self._choice, self._parts
        self._response = self._choice = None
        if response is not None:
            response.close()
        if choice is not None:
            parts.choosing.leave(choice)
        parts.watch.drop(self)

    def _hand_over(self) -> None:
        """Whatever is out of the ordinary is a task's."""
        carrier, self.carrier = self.carrier, None
        if self._response is not None:
            self._response.follower = None
        if carrier is not None:
            carrier.carry(self._go_on(), self._reply)

    async def _go_on(self) -> None:
        present_id.set(self._facts.request_id)
        await self.run()
