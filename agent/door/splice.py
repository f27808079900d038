"""Two connections made one: bytes pass both ways as fast as the slower end takes them (AGENT-16).

Owns back-pressure and both endings. Never looks at the bytes, and never holds more of them than the
two write buffers' limits and one read.

`Caller` is the TLS end, first asked for its line; `EngineEnd` the engine's. A caller that ends its
side is gone: the engine's connection is dropped at once, so that the engine stops working for nobody
(GW-09). An engine that ends its side has said all: that is delivered before the caller's end closes.
"""

from __future__ import annotations

import asyncio

from agent.contract.door import LONGEST_LINE

HIGH_WATER = 256 * 1024


class CallerLeft(Exception):
    """The connection ended, or had too long a line, before there was anything to splice."""


class EngineEnd(asyncio.Protocol):
    """The engine's side, from its connection on."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)
        transport.pause_reading()  # nothing may come before the greeting

    def data_received(self, data: bytes) -> None:
        self._caller.send(data)

    def eof_received(self) -> bool:
        self._caller.finish()
        return True  # kept until the caller has all of it

    def pause_writing(self) -> None:
        self._caller.pause()

    def resume_writing(self) -> None:
        self._caller.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._caller.finish()

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class Caller(asyncio.Protocol):
    """The gateway's side. `line()` first; then `splice_to` or `refuse`; `gone` is set at the end."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()
        self._engine: EngineEnd | None = None
        self._held = bytearray()
        self._line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def line(self) -> bytes:
        """The first line with its end. Raises CallerLeft."""
        return await self._line

    def splice_to(self, engine: EngineEnd, greeting: bytes) -> None:
        """Greet the caller and pass everything on from here."""
        assert self.transport is not None and engine.transport is not None
        if self.gone.is_set():
            engine.drop()
            return
        self._engine = engine
        self.transport.write(greeting)
        engine.transport.resume_reading()
        self.resume()  # before the write, which may pause it again
        if self._held:
            engine.transport.write(bytes(self._held))
            self._held.clear()

    def finish(self, last: bytes = b"") -> None:
        """Deliver what was sent, and these bytes, then end."""
        if self.transport is not None and not self.transport.is_closing():
            if last:
                self.transport.write(last)
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def send(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    # --- called by the loop -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self._engine is not None:
            if self._engine.transport is not None:
                self._engine.transport.write(data)
            return
        self._held += data
        if self._line.done():
            return
        end = self._held.find(b"\n", 0, LONGEST_LINE)
        if end >= 0:
            line = bytes(self._held[: end + 1])
            del self._held[: end + 1]
            self.pause()  # what follows waits in the kernel until there is an engine
            self._line.set_result(line)
        elif len(self._held) >= LONGEST_LINE:
            self._line.set_exception(CallerLeft("too long"))

    def eof_received(self) -> None:
        self._leave()
        self.abort()

    def pause_writing(self) -> None:
        if self._engine is not None and self._engine.transport is not None:
            self._engine.transport.pause_reading()

    def resume_writing(self) -> None:
        engine = self._engine.transport if self._engine is not None else None
        if engine is not None and not engine.is_closing():
            engine.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        self.gone.set()
        if not self._line.done():
            self._line.set_exception(CallerLeft("left"))
            self._line.exception()  # whoever awaits it gets it; nobody awaiting is no fault
        if self._engine is not None:
            self._engine.drop()
