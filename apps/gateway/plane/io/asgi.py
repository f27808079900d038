"""The gateway under any ASGI server: the shell of the embedded profile and of tests.

Owns how a request becomes an Asked, an answer ASGI messages, and a "disconnect" a cancelled call.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.admission import BACKEND_HEADER
from apps.gateway.plane.io.asked import Asked, CallerGone, Grown
from apps.gateway.plane.io.reply import JSON, STREAM, Headers, Reply

Scope = dict[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


class Answering(Protocol):
    async def answer(self, asked: Asked, reply: Reply) -> None: ...

    def end(self, work: "asyncio.Task[None]") -> None:
        """Ends a call because the server stops."""


async def serve(gateway: Answering, scope: Scope, receive: Receive, send: Send, *, patience_s: float) -> None:
    """One request. Where the server itself is told to stop, its caller is told so within `patience_s`."""
    if scope["type"] != "http":
        raise ValueError(f"the gateway serves http only, not {scope['type']}")
    asked, reply = _Request(scope, receive), _Reply(send)
    work = asyncio.create_task(gateway.answer(asked, reply))
    gone = asyncio.create_task(asked.until_gone())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        # After the last byte the server says "disconnect" too; the tail may still be read then.
        if not work.done() and not reply.ended:
            work.cancel()
        await asyncio.wait({work})
    except asyncio.CancelledError:
        gateway.end(work)
        await asyncio.wait({work}, timeout=patience_s)
        raise
    finally:
        gone.cancel()
    if not work.cancelled() and (error := work.exception()) is not None:
        raise error


class _Request:
    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = _join(scope["headers"])
        self.peer: str = scope["client"][0] if scope.get("client") else ""
        self._receive = receive
        self._read = asyncio.Event()

    def ready(self, most: int) -> bytes | None:
        return None

    async def body(self, limit: int, grown: Grown) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            body += message.get("body", b"")
            if len(body) > limit:
                raise errors.body_too_large(limit)
            grown(len(body))
            if not message.get("more_body", False):
                self._read.set()
                return bytes(body)

    async def until_gone(self) -> None:
        """While the body is read, the reading sees for itself whether the caller is there."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def _join(lines: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """What comes more than once is one list, as with the listener: the last alone could hide the first."""
    headers: dict[bytes, bytes] = {}
    for name, value in lines:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


class _Reply(Reply):
    _send: Send

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
        if self.backend:
            named.append((BACKEND_HEADER, self.backend))
        await self._send({"type": "http.response.start", "status": status, "headers": named})
