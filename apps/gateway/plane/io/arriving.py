"""One request while it is read: its head, and as much of its body as has come.

Owns how much of a body is taken in unasked. Reads nothing itself; the connection (caller.py) feeds it.
"""

import asyncio
from typing import Protocol

from apps.gateway.plane.core import errors
from apps.gateway.plane.io.asked import Grown

UNASKED_BYTES = 256 * 1024
"""As much of a body is taken in before anybody has asked for it."""


class Connected(Protocol):
    """The connection that it arrives on."""

    peer: str

    def write(self, data: bytes) -> None: ...

    def read_on(self) -> None:
        """More of it is wanted."""


class Request:
    """One request as it is read, and the Asked that the gateway gets."""

    __slots__ = (
        "_caller",
        "_first",
        "_rest",
        "_waiter",
        "_wanted",
        "broken",
        "complete",
        "headers",
        "method",
        "modern",
        "path",
        "size",
        "stays",
    )

    def __init__(self, caller: Connected) -> None:
        self._caller = caller
        self._first, self._rest = b"", bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = False
        self.broken: errors.CallError | None = None
        self.complete = self.modern = self.stays = False
        self.headers: dict[bytes, bytes] = {}
        self.method = self.path = ""
        self.size = 0

    @property
    def peer(self) -> str:
        return self._caller.peer

    @property
    def flooding(self) -> bool:
        return not self._wanted and self.size > UNASKED_BYTES

    def add(self, part: bytes) -> None:
        if self.size:
            self._rest += part  # a list of parts of two bytes each would be twenty times as large
        else:
            self._first = part
        self.size += len(part)
        self._go_on()

    def end(self, *, stays: bool) -> None:
        self.complete, self.stays = True, stays
        self._go_on()

    def fail(self, fault: errors.CallError) -> None:
        """Its body will never be whole."""
        self.broken = fault
        self._go_on()

    def ready(self, most: int) -> bytes | None:
        return self._take() if self.complete and self.size < most else None

    async def body(self, limit: int, grown: Grown) -> bytes:
        self._wanted = True
        if self.modern and not self.complete and self.headers.get(b"expect", b"").lower() == b"100-continue":
            self._caller.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            while not self.complete and self.broken is None and self.size <= limit:
                grown(self.size)
                self._caller.read_on()
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            if self.size > limit:
                raise errors.body_too_large(limit)
            if self.broken is not None:
                raise self.broken
            grown(self.size)
            return self._take()
        finally:
            self._take()  # who gives up wants nothing of what has come

    def seen(self) -> bytes:
        """What there is of the body; it can be asked for again."""
        return self._first + self._rest if self._rest else self._first

    def _take(self) -> bytes:
        first, rest, self._first, self._rest = self._first, self._rest, b"", bytearray()
        return first + rest if rest else first

    def _go_on(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
