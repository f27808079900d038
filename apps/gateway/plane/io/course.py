"""What every call has, whichever way it goes: its replica, its stream, its record.

Owns that a replica that was entered is left, and that a call leaves one record. Waits for nothing: how a call
goes on is straight.py's and exchange.py's.
"""

import asyncio
from collections.abc import Awaitable

import msgspec

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.answer import Answer, read_upstream_error
from apps.gateway.plane.core.blame import failure_of
from apps.gateway.plane.core.choice import Choice, Pins
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.request import Call
from apps.gateway.plane.core.stream import StreamScanner
from apps.gateway.plane.core.usage import CallFacts
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.choosing import Choosing
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.room import Kept
from apps.gateway.plane.io.settlement import Settlement
from apps.gateway.plane.io.upstream import Connection, Upstream
from apps.gateway.plane.io.waiting import Waiting
from apps.gateway.plane.io.watch import Watch
from apps.routing.table import PIN, Key
from apps.usage.record import Ending

CLIENT_GONE_STATUS = 499


class Parts(msgspec.Struct, frozen=True):
    """What all calls of a gateway share."""

    config: GatewayConfig
    upstream: Upstream
    choosing: Choosing
    big_bodies: asyncio.Semaphore
    watch: Watch


class Course(Waiting):
    """`carried`: whole header lines that go on to the engine. `task`: the one that it runs in, if any.
    `kept`: the room of its body, where that may be a big one."""

    _parts: Parts
    _key: Key
    _call: Call
    _pins: Pins
    _settlement: Settlement
    _facts: CallFacts
    _reply: Reply
    _choice: Choice | None = None
    _response: Connection | None = None
    _scanner: StreamScanner | None = None
    _served_name: str = ""
    _unsent: bytes = b""
    _owed: Awaitable[None] | None = None
    _length: int = 0
    _late: bool = False
    stopping: bool = False
    carried: bytes = b""
    task: asyncio.Task[None] | None = None
    kept: Kept | None = None

    def __post_init__(self) -> None:
        self._begin_waiting(self._parts.config)
        self._settlement.call = self._call

    @property
    def model_in_use(self) -> str | None:
        """The model's name while a replica has the call."""
        return None if self._choice is None else self._call.model

    def stop(self) -> None:
        """Ends the call because the gateway does; its caller is told so."""
        self.stopping = True
        if self.task is not None:
            self.task.cancel()

    def _blame(self, choice: Choice, fault: errors.CallError | None) -> None:
        """Tells of a fault that is the replica's own (GW-08)."""
        kind = failure_of(fault)
        if kind is not None:
            self._parts.choosing.failed(choice, kind)

    def _enter(self, choice: Choice) -> None:
        """The call goes to a replica; `_leave` must follow. The record names the one that was tried last."""
        self._choice = choice
        facts = self._facts
        facts.route_id, facts.group_id = choice.route.route_id, choice.route.group_id
        facts.task_id, facts.attempt = choice.replica.task_id, choice.replica.attempt
        if PIN in self._key.scopes:  # who may name a backend may know which one it was
            self._reply.backend = choice.replica.task_id.encode()

    def _leave(self, choice: Choice) -> None:
        self._choice = None
        self._parts.choosing.leave(choice)

    def _close(self) -> None:
        """A response that was not read to its end closes its connection (GW-09)."""
        if self._response is not None:
            self._response.close()
            self._response = None

    def _scan(self) -> StreamScanner:
        config = self._parts.config
        self._scanner = StreamScanner(
            self._call.model, hide_usage=not self._call.wants_usage, max_event_bytes=config.max_event_bytes
        )
        self._expect("first event", config.first_byte_timeout_s, self._beat_s)
        return self._scanner

    def _settle_whole(self, answer: Answer, *, put: bool = False) -> None:
        facts = self._facts
        facts.usage, facts.delivered = answer.usage, answer.text_tokens
        self._settlement.settle(Ending.COMPLETED, 200, whole=True, put=put)

    def _refusal(self, response: Connection, body: bytes) -> errors.CallError:
        meters.count_upstream(f"status_{response.status // 100}xx")
        return read_upstream_error(
            response.status,
            body,
            retry_after=response.retry_after,
            served_name=self._served_name,
            model=self._call.model,
            retry_after_s=self._parts.config.retry_after_s,
        )

    def _settle(self, ending: Ending, http_status: int, *, put: bool = False) -> None:
        if self._scanner is not None:
            self._facts.usage, self._facts.delivered = self._scanner.usage, self._scanner.pieces
        self._settlement.settle(ending, http_status, put=put)

    def _sent_status(self, otherwise: int) -> int:
        return 200 if self._reply.started else otherwise
