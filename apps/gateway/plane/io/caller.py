"""One caller's connection to the bare listener: requests in, answers out, one after the other.

Owns the reading of HTTP/1.1 and its limits: whatever could be read in two ways is refused, heads and bodies
are bounded in size and time, and nobody is read faster than served. Knows no key and no model.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

import httptools

from apps.core.request_id import carry_on
from apps.gateway.plane.core import errors
from apps.gateway.plane.core.likeness import Likeness, learn
from apps.gateway.plane.core.request import is_host, read_path
from apps.gateway.plane.io.arriving import Request
from apps.gateway.plane.io.outbox import MOST_BYTES
from apps.gateway.plane.io.straight import Head, read_head
from apps.gateway.plane.io.watch import NEVER
from apps.gateway.plane.io.wire import WireReply

if TYPE_CHECKING:
    from apps.gateway.plane.io.listener import Listener

_ONCE = frozenset({b"authorization", b"content-type", b"host"})


class Leavable(Protocol):
    """A call that runs without a task, in what its sockets call."""

    def gone(self) -> None:
        """Its caller has left."""


class Caller(asyncio.Protocol):
    """`due` is the deadline of whatever the caller must do next; a call that is served has its own."""

    __slots__ = (
        "_answering",
        "_broken",
        "_course",
        "_drained",
        "_full",
        "_head_bytes",
        "_heading",
        "_held_back",
        "_known",
        "_lingers",
        "_listener",
        "_loop",
        "_parser",
        "_paused",
        "_reading",
        "_repeated",
        "_surely_short",
        "_target",
        "_task",
        "_transport",
        "_waiting",
        "due",
        "lost",
        "peer",
    )

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Request] = deque()
        self._reading: Request | None = None
        self._answering: tuple[Request, WireReply] | None = None
        self._task: asyncio.Task[None] | None = None
        self._course: Leavable | None = None
        self._known: tuple[Likeness, Request, Head] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._broken: errors.CallError | None = None
        self._target = b""
        self._head_bytes = self._repeated = 0
        self._surely_short = False
        self._held_back = self._heading = self._full = self._paused = self._lingers = self.lost = False
        self.due = NEVER
        self.peer = ""

    # ---- the connection ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # asyncio's own types are wider than its word
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) else ""
        self.due = self._loop.time() + self._listener.config.idle_timeout_s
        self._listener.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.due = NEVER
        self._listener.leave(self)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        # What was answered may still have its engine's last bytes to read.
        if self._answering is not None:
            if self._course is not None:
                self._course.gone()
            elif self._task is not None:
                # After its first step: that what it began may be ended.
                self._loop.call_soon(self._task.cancel)

    def data_received(self, data: bytes) -> None:
        if self._lingers or self._broken is not None:
            return
        if self._held_back:  # whatever is answered to this comes after it
            self._listener.outbox.flush()
        calm = self._answering is None and self._reading is None and not self._waiting and not self._full
        if calm and self._known is not None and self._begin_like(self._known, data):
            return
        before, config = self._place, self._listener.config
        self._surely_short = not self._heading and len(data) <= config.head_bytes
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(errors.bad_http(str(error).split("\n", 1)[0].lower()))
        if self._reading is None or self._place != before:
            self._head_bytes = 0
            if self._heading:
                self.due = self._loop.time() + config.head_timeout_s
        else:  # the same head goes on, or what may stand around the parts of a body
            self._head_bytes += len(data)
            if self._head_bytes > config.head_bytes:
                self._break(errors.head_too_large(config.head_bytes, "bytes"))
        if calm and self._reading is None and len(self._waiting) == 1:
            self._learn(data, self._waiting[0])
        self._go_on()

    @property
    def _place(self) -> tuple[Request | None, bool, int]:
        return self._reading, self._heading, 0 if self._reading is None else self._reading.size

    def eof_received(self) -> None:
        """Whoever has said its last word has gone: the transport closes, after what was answered already."""
        self._listener.outbox.flush()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._go_on()

    def overdue(self) -> None:
        if self._answering is not None:
            return  # the head of its next request may not even be read now
        if self._full or self._lingers or self._transport is None or self._transport.is_closing():
            self.abort()
        elif self._heading:
            self._break(errors.head_too_slow(self._listener.config.head_timeout_s))
            self._go_on()
        else:
            self._close()

    def drain(self) -> None:
        """Closes the connection where nothing is under way on it; else it ends with what is."""
        if self._answering is None and self._reading is None and not self._waiting:
            self._close()

    def abort(self) -> None:
        self.lost = True  # what is held back for it is not written any more
        if self._transport is not None:
            self._transport.abort()

    # ---- from the parser ----

    def on_message_begin(self) -> None:
        if len(self._waiting) >= self._listener.config.waiting_requests:
            self._break(errors.bad_http("too many requests were sent before the first was answered"))
            raise ValueError
        self._reading = Request(self)
        self._heading = True
        self._repeated = 0
        self._target = b""

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        request, config = self._reading, self._listener.config
        if request is None or not self._heading:  # what stands behind a body says nothing here
            return
        headers, name = request.headers, name.lower()
        if name in headers:
            if name in _ONCE:
                self._break(errors.bad_http(f"more than one {name.decode('latin-1')} header"))
                raise ValueError
            value = headers[name] + b", " + value
            self._repeated += 1
        headers[name] = value
        if len(headers) + self._repeated > config.head_lines:
            self._break(errors.head_too_large(config.head_lines, "lines"))
            raise ValueError

    def on_headers_complete(self) -> None:
        request = self._reading
        if request is None:
            return
        parser, headers = self._parser, request.headers
        request.method = parser.get_method().decode("latin-1")
        version = parser.get_http_version()
        request.modern = version == "1.1"
        if parser.should_upgrade() or version not in ("1.0", "1.1"):
            self._break(errors.bad_http("it asks for another protocol"))
            raise ValueError
        host = headers.get(b"host")
        if request.modern if host is None else not is_host(host):
            self._break(errors.bad_http("it has no Host header that names a host"))
            raise ValueError
        coding = headers.get(b"transfer-encoding")
        if coding is not None and not (request.modern and coding.strip().lower() == b"chunked"):
            self._break(errors.bad_http("its Transfer-Encoding is not the chunked of HTTP/1.1 alone"))
            raise ValueError
        if not self._surely_short and self._size_of_head(headers) > self._listener.config.head_bytes:
            self._break(errors.head_too_large(self._listener.config.head_bytes, "bytes"))
            raise ValueError
        request.path = read_path(self._target)
        self._heading = False
        self._waiting.append(request)

    def _size_of_head(self, headers: dict[bytes, bytes]) -> int:
        return len(self._target) + sum(map(len, headers)) + sum(map(len, headers.values()))

    def on_body(self, part: bytes) -> None:
        if self._reading is not None:
            self._reading.add(part)

    def on_message_complete(self) -> None:
        if self._reading is not None:
            # Right only in here: asked later it always says no.
            self._reading.end(stays=self._parser.should_keep_alive())
            self._reading = None

    def _break(self, fault: errors.CallError) -> None:
        """Nothing more is read of this connection; its caller hears why after what it waits for already."""
        if self._broken is None:
            self._broken = fault
            if self._reading is not None:
                self._reading.fail(fault)

    # ---- one answer after the other ----

    def write(self, data: bytes) -> None:
        self._held_back = False
        if self._transport is not None and not self.lost:
            self._transport.write(data)

    def owed(self) -> Awaitable[None] | None:
        if not self._full or self.lost:
            return None
        if self._drained is None or self._drained.done():
            self._drained = self._loop.create_future()
        return self._drained

    def read_on(self) -> None:
        if self._paused and self._transport is not None and not self.lost:
            self._paused = False
            self._transport.resume_reading()

    def end(self, head: bytes, body: bytes = b"") -> None:
        listener, closes = self._listener, self.closes
        if closes or self._full or len(head) + len(body) > MOST_BYTES:
            listener.outbox.flush()
            self.write(head)
            if body:
                self.write(body)
        else:
            self._held_back = True
            listener.outbox.hold(self, head + body)
        self._task = self._course = self._answering = None
        if closes:
            self._finish()
        elif self._waiting or self._broken is not None:
            self._loop.call_soon(self._go_on)
        else:
            config = listener.config
            self.due = self._loop.time() + (config.head_timeout_s if self._heading else config.idle_timeout_s)

    @property
    def closes(self) -> bool:
        if self._answering is None or self._listener.draining:
            return True
        request = self._answering[0]
        return not (request.complete and request.stays and request.modern)

    def _go_on(self) -> None:
        if self._transport is None or self.lost or self._lingers or self._transport.is_closing():
            return
        if self._answering is None and not self._full:
            self.read_on()
            if self._waiting:
                self._begin(self._waiting.popleft())
            elif self._broken is not None:
                self._refuse(self._broken)
            return
        if self._answering is None:  # it asks and doesn't read: nothing more is answered before it has
            self.due = self._loop.time() + self._listener.config.client_write_timeout_s
        if not self._paused and (self._answering is None or self._waiting or self._answering[0].flooding):
            self._paused = True
            self._transport.pause_reading()

    def _begin(self, request: Request) -> None:
        self.due = NEVER
        reply = WireReply(self, chunks=request.modern, bare=request.method == "HEAD")
        self._answering = request, reply
        gateway = self._listener.gateway
        if request.complete and (head := read_head(request)) is not None:
            body = request.seen()
            if (course := gateway.begin(head, body, reply, self)) is not None:
                self._course = course if self._task is None else None
                return
        self._task = self._loop.create_task(self._run(gateway.answer(request, reply), reply))

    def _learn(self, data: bytes, request: Request) -> None:
        """A request that came alone and at once: the next one may be just like it."""
        head = read_head(request) if request.complete and request.stays and request.modern else None
        likeness = None if head is None else learn(data)
        self._known = None if head is None or likeness is None else (likeness, request, head)

    def _begin_like(self, known: tuple[Likeness, Request, Head], data: bytes) -> bool:
        """Begins the call of a request with the same head as the one before; False = it has another, or must
        be read like any."""
        likeness, request, head = known
        body = likeness.body(data)
        if body is None or self._listener.draining:
            return False
        reply = WireReply(self)
        self._answering = request, reply
        course = self._listener.gateway.begin(head, body, reply, self)
        if course is None:
            self._answering = None
            return False
        self._course = course if self._task is None else None
        self.due = NEVER
        return True

    def carry(self, work: Coroutine[Any, Any, None], reply: WireReply) -> None:
        """The call goes on in a task."""
        self._course = None
        self._task = self._loop.create_task(self._run(work, reply))

    async def _run(self, work: Coroutine[Any, Any, None], reply: WireReply) -> None:
        try:
            await work
        finally:
            if not reply.ended:  # cancelled, or its caller reads nothing: what was begun can't be ended well
                self.abort()

    def _refuse(self, fault: errors.CallError) -> None:
        self._listener.refused(fault)
        reply = WireReply(self)
        reply.request_id = carry_on("")
        self._answering = Request(self), reply  # it is none that was read to its end, so all ends with it
        reply.error(fault)

    def _finish(self) -> None:
        """The last answer of this connection went out. What the caller still sends is read for a while: to
        close now would throw away the answer with it."""
        if self._transport is None or self.lost:
            return
        self._waiting.clear()
        self._lingers = True
        self.due = self._loop.time() + self._listener.config.linger_s
        self.read_on()
        if self._reading is None and self._broken is None:
            self._close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        """After what was written has gone out, for as long as a caller may take to read it."""
        self._listener.outbox.flush()
        self.due = self._loop.time() + self._listener.config.client_write_timeout_s
        if self._transport is not None:
            self._transport.close()
