"""One answer to a caller: what is sent when, whichever shell sends it. Knows nothing of what is answered."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from apps.gateway.plane.core.errors import CallError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Headers = tuple[tuple[bytes, bytes], ...]

JSON: Headers = ((b"content-type", b"application/json"),)
# Nothing between here and the caller may hold back or pack a stream (GW-09).
STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Reply(ABC):
    """`started`: a status went out; `ended`: the last byte was handed over.

    What `whole` and `stream` give back must be waited for before more is sent: the caller reads too slowly.
    None = nothing is owed.
    """

    __slots__ = ("ended", "request_id", "started")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.started = False
        self.ended = False

    @abstractmethod
    def whole(self, status: int, body: bytes, headers: Headers = JSON) -> Awaitable[None] | None:
        """Status, headers and body at once."""

    @abstractmethod
    def stream(self, body: bytes, *, last: bool = False) -> Awaitable[None] | None:
        """A piece of an event stream; its status and headers go before the first one."""

    def error(self, fault: CallError) -> Awaitable[None] | None:
        """An OpenAI error object; only before anything else was sent."""
        headers = list(JSON)
        if fault.retry_after is not None:
            headers.append((b"retry-after", fault.retry_after.encode("latin-1", "replace")))
        if fault.allow is not None:
            headers.append((b"allow", fault.allow.encode()))
        if fault.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return self.whole(fault.status, fault.body(), tuple(headers))


class AsgiReply(Reply):
    """As ASGI messages."""

    __slots__ = ("_send",)

    def __init__(self, send: Send, request_id: str) -> None:
        super().__init__(request_id)
        self._send = send

    async def whole(self, status: int, body: bytes, headers: Headers = JSON) -> None:
        await self._start(status, (*headers, (b"content-length", str(len(body)).encode())))
        self.ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def stream(self, body: bytes, *, last: bool = False) -> None:
        if not self.started:
            await self._start(200, STREAM)
        self.ended = last
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def _start(self, status: int, headers: Headers) -> None:
        self.started = True
        named = [*headers, (b"x-request-id", self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": named})
