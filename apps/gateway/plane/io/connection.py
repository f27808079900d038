"""One kept connection to a replica: a request out, its response in, and then the next (GW-15).

Owns the framing of HTTP/1.1 and the pace: what comes is handed on at once, and no more is read than was
taken. Knows nothing of models, keys or events. Whatever isn't HTTP ends the connection.
"""

import asyncio
import select
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import httptools

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.likeness import Likeness, learn

if TYPE_CHECKING:
    from apps.gateway.plane.io.pool import Pool

MOST_HELD_BYTES = 64 * 1024
MOST_HEAD_BYTES = 64 * 1024
_JOIN_BYTES = 64 * 1024
Take = Callable[[bytes], Awaitable[None] | None]
"""Takes a piece of a body; where it gives something to wait for, the next piece comes after that."""


Known = tuple[Likeness, bytes, bytes | None]
"""The head of an answer 200 that was read before, its content type and its Retry-After."""


class Unreachable(Exception):
    """The connection failed before any byte of a response. `refused`: it never came about."""

    def __init__(self, *, refused: bool) -> None:
        super().__init__("refused" if refused else "closed")
        self.refused = refused


class Follower(Protocol):
    """Who looks at each thing that comes as it comes, instead of waiting for it."""

    def came(self) -> None:
        """Bytes of the answer, its end or a fault. Takes what there is by `head`, `whole`, `taken`."""


class Connection(asyncio.Protocol):
    """`post`, `head`, `pump` or `whole`, then `close`, which keeps it only if all was read to its end.

    Of the head `status`, `content_type` and `retry_after` are kept.
    """

    __slots__ = (
        "_begun",
        "_ended",
        "_enough",
        "_fault",
        "_framed",
        "_head_bytes",
        "_headed",
        "_held_bytes",
        "_idle",
        "_keep",
        "_loop",
        "_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_pool",
        "_take",
        "_transport",
        "_unread",
        "_waiter",
        "content_type",
        "follower",
        "idle_since",
        "on_body",
        "retry_after",
        "status",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        # The parser calls it for each piece; a stream that comes at once has one for each event.
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._unread: select.poll | None = None
        self._waiter: asyncio.Future[Awaitable[None] | None] | None = None
        self._take: Take | None = None
        self.follower: Follower | None = None
        self._lost = self._paused = False
        self._idle = True
        self.idle_since = 0.0
        self._fault: Exception | None = None
        self.retry_after: bytes | None = None
        self._reset()

    def _reset(self) -> None:
        self._begun = self._headed = self._ended = self._enough = self._keep = self._framed = False
        self._fault = None
        self._head_bytes = self._held_bytes = self.status = 0
        self.content_type, self.retry_after = b"", None

    # ---- for whoever asks ----

    @property
    def closed(self) -> bool:
        return self._lost or self._transport is None or self._transport.is_closing()

    @property
    def fit(self) -> bool:
        """Of one that is idle: whether it can serve. Not where the engine has ended it, or said something
        that the loop has not read yet and that would be taken for the answer to the next request."""
        return not self.closed and (self._unread is None or not self._unread.poll(0))

    @property
    def unsent(self) -> int:
        """Bytes of the request that the engine has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def post(self, path: str, request_id: str, carried: bytes, body: bytes) -> None:
        """Begins a request with a JSON body; `carried` are whole further lines."""
        head = self._pool.head("POST", path)
        lines = b"%bX-Request-ID: %b\r\n%bContent-Length: %d\r\n\r\n"
        self.send(lines % (head, request_id.encode(), carried, len(body)), body)

    def send(self, head: bytes, body: bytes) -> None:
        """Begins a request; `head` with its blank line."""
        transport = self._transport
        if transport is None:
            raise RuntimeError("the connection is not open yet")
        self._idle = False
        if len(body) < _JOIN_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    async def head(self) -> None:
        """Waits for the head of the response. Raises Unreachable, or CallError 502 for what isn't HTTP."""
        if not self._headed and self._fault is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        if not self._headed and self._fault is not None:
            raise self._fault

    def whole(self) -> bytes | None:
        """The body, if all of it is there and nothing was taken yet."""
        if not self._ended or self._enough:
            return None
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def taken(self) -> list[bytes]:
        """What has come of the body since it was last taken, in the pieces that it came in."""
        pieces = self._pieces.copy()
        self._forget_pieces()
        return pieces

    @property
    def over(self) -> bool:
        """Nothing more will come: it has ended, well or not."""
        return self._ended or self._fault is not None

    @property
    def full(self) -> bool:
        """It holds as much as it may without that it is taken, or is broken."""
        return self._held_bytes > MOST_HELD_BYTES or self._fault is not None

    async def pump(self, take: Take) -> None:
        """Hands the body over as it comes, until its end or `stop`.

        Raises what `take` raises, and CallError 502 where the connection broke before the end.
        """
        while not self._enough:
            if self._pieces:
                owed = take(self._gather())
            elif self._ended:
                return
            elif self._fault is not None:
                raise self._fault
            else:
                self._take = take
                self._waiter = self._loop.create_future()
                owed = await self._waiter
            if owed is not None:
                await owed

    @property
    def waited_for(self) -> bool:
        """Whether `pump` waits for the next piece, and for nothing else."""
        return self._take is not None and self._waiter is not None and not self._waiter.done()

    def hold(self, owed: Awaitable[None]) -> None:
        """Lets `pump` wait for `owed` first; only where it is `waited_for`."""
        self._wake(owed)

    def stop(self) -> None:
        """Ends `pump`; nothing more of the body is wanted."""
        self._enough = True
        if self._take is not None:
            self._wake(None)

    def close(self) -> None:
        """Must follow each `send`. A response that was not read to its end takes its connection with it, so
        that the engine stops at once (GW-09)."""
        self._take = self._waiter = self.follower = None
        self._pieces.clear()
        transport = self._transport
        if not (self._ended and self._keep) or transport is None or transport.get_write_buffer_size():
            self.abort()
            self._pool.drop()
            return
        if self._paused:
            self._paused = False
            transport.resume_reading()
        self._reset()
        self._idle = True
        self._pool.park(self)

    def abort(self) -> None:
        self._keep = False
        if self._transport is not None:
            self._transport.abort()

    def _wake(self, owed: Awaitable[None] | None) -> None:
        waiter, self._waiter, self._take = self._waiter, None, None
        if waiter is not None and not waiter.done():
            waiter.set_result(owed)

    def _gather(self) -> bytes:
        pieces = self._pieces
        gathered = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._forget_pieces()
        return gathered

    def _forget_pieces(self) -> None:
        self._pieces.clear()
        self._held_bytes = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # ---- from the socket ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio's own types are wider than its word
        if (sock := transport.get_extra_info("socket")) is not None:
            self._unread = select.poll()
            self._unread.register(sock.fileno(), select.POLLIN | select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        if self._idle or self._ended:  # nothing was asked, so nothing may be said
            self.abort()
            return
        if not self._begun and self._pool.known is not None and self._know(self._pool.known, data):
            if self.follower is not None:
                self.follower.came()
            else:
                self._tell()
            return
        whole = not self._begun
        self._begun = True
        self._held_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._break(errors.upstream_unreadable("is not HTTP"))
        if not self._headed:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self._break(errors.upstream_unreadable("has a head that is too long"))
        if whole and self._ended and self._keep and self.status == 200:
            self._learn(data)
        self._tell()

    def _learn(self, data: bytes) -> None:
        """An answer that came whole: the head of the next one may be the same."""
        if (likeness := learn(data)) is not None:
            self._pool.known = likeness, self.content_type, self.retry_after

    def _know(self, known: Known, data: bytes) -> bool:
        """Takes a whole answer whose head was read before without reading it again."""
        body = known[0].body(data)
        if not body:
            return False
        _, self.content_type, self.retry_after = known
        self._begun = self._framed = self._headed = self._ended = self._keep = True
        self.status = 200
        self._pieces.append(body)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self._idle:
            self._pool.forget(self)
            return
        if self._headed and not self._framed and exc is None:
            self._ended = True  # the end of the connection is the end of such a body
        elif self._begun:
            self._break(errors.upstream_unreadable("broke off in its head"))
        else:
            self._break(Unreachable(refused=False))
        self._tell()

    def _break(self, fault: Exception) -> None:
        """The connection is of no use any more; `fault` is what it means while the head isn't there."""
        if not self._ended and self._fault is None:
            self._fault = errors.upstream_truncated() if self._headed else fault
        self.abort()

    def _tell(self) -> None:
        """Gives what has come to whoever waits for it."""
        if self.follower is not None:
            self.follower.came()
            return
        if self._take is None:
            if self._headed or self._fault is not None:
                self._wake(None)
            if self._held_bytes > MOST_HELD_BYTES and not self._paused and not self._lost and self._transport:
                self._paused = True
                self._transport.pause_reading()
            return
        if self._pieces:
            take, self._take = self._take, None
            try:
                owed = take(self._gather())
            except Exception as error:
                waiter, self._waiter = self._waiter, None
                if waiter is not None and not waiter.done():
                    waiter.set_exception(error)
                return
            if owed is not None:
                self._wake(owed)
                return
            self._take = take
        if self._ended or self._enough or self._fault is not None:
            self._wake(None)

    # ---- from the parser ----

    def on_message_begin(self) -> None:
        if self._ended:
            raise ValueError("a response that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        length = len(name)
        if length == 12:
            if name.lower() == b"content-type":
                self.content_type = value.lower()
        elif length == 14:
            self._framed = self._framed or name.lower() == b"content-length"
        elif length == 17:
            self._framed = self._framed or name.lower() == b"transfer-encoding"
        elif length == 11 and name.lower() == b"retry-after":
            self.retry_after = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._headed = self.status >= 200

    def on_message_complete(self) -> None:
        if self._headed:
            self._ended = True
            # Right only in here: asked later it always says no.
            self._keep = self._parser.should_keep_alive()
        else:
            self._framed, self.status = False, 0  # 1xx: the response is still to come
            self.content_type, self.retry_after = b"", None
