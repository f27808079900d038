"""Writes one answer as ASGI messages. Knows headers and order, nothing of what is answered."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from apps.gateway.plane.core.errors import CallError

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]

JSON = b"application/json"
# Nothing between here and the caller may hold back or pack a stream (GW-09).
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Reply:
    """`started`: a status went out; `ended`: the last byte was handed over."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.started = False
        self.ended = False

    async def whole(
        self,
        status: int,
        body: bytes,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", JSON),),
    ) -> None:
        """Status, headers and body at once."""
        await self._start(status, (*headers, (b"content-length", str(len(body)).encode())))
        await self.piece(body, last=True)

    async def error(self, fault: CallError) -> None:
        """An OpenAI error object; only before anything else was sent."""
        headers: list[tuple[bytes, bytes]] = [(b"content-type", JSON)]
        if fault.retry_after is not None:
            headers.append((b"retry-after", fault.retry_after.encode("latin-1", "replace")))
        if fault.allow is not None:
            headers.append((b"allow", fault.allow.encode()))
        if fault.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self.whole(fault.status, fault.body(), headers=tuple(headers))

    async def begin_stream(self) -> None:
        await self._start(200, STREAM_HEADERS)

    async def piece(self, body: bytes, *, last: bool = False) -> None:
        """Hands bytes over; waits while the caller reads too slowly."""
        if last:
            self.ended = True
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def _start(self, status: int, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.started = True
        named = [*headers, (b"x-request-id", self._request_id)]
        await self._send({"type": "http.response.start", "status": status, "headers": named})
