"""The door: one TLS port through which the gateway reaches this node's engines (AGENT-16).

Owns the listener, the bounds on connections, and the order TLS, line, engine, splice. Runs in the
agent's loop. Whatever is wrong with a line, the answer is the same short refusal; the reasons are
only counted here. Never logs a line.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from agent.contract import door as contract
from agent.contract.door import Fault, Line, Purpose
from agent.door.certificate import Certificate
from agent.door.nonces import Nonces
from agent.door.splice import Caller, CallerLeft, EngineEnd
from agent.door.targets import FindPort

log = logging.getLogger("agent.door")
OUTCOMES = ("open", "ping", *Fault, "replay", "late", "full", "crowded", "no_engine", "broken")
"""Of a connection: passed on, answered, or refused: by its line, for a line that came before, none in time,
too many connections, too many that had proved nothing, no such engine, TLS or the connection itself."""
_AFTER_ACCEPT_FAULT_S = 0.2
_TELL_EACH_S = 60.0
_ASK_IDLE_AFTER_S, _ASK_IDLE_EACH_S, _ASK_IDLE_TIMES = 30, 10, 3


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Connections are counted apart: those that have not proved anything yet, and the rest.
    Durations in seconds."""

    connections: int = 1024
    unproved: int = 128
    line_s: float = 5.0  # for TLS and the line together
    connect_s: float = 3.0  # to the engine
    linger_s: float = 60.0  # for a caller to take the last bytes
    skew_s: float = contract.SKEW_S


class Door:
    """`open` before `run`; `close` ends all connections. `counts` by what is in OUTCOMES."""

    def __init__(
        self,
        *,
        key: bytes,
        certificate: Certificate,
        find_port: FindPort,
        engine_host: str,
        limits: Limits,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._certificate = certificate
        self._find_port = find_port
        self._engine_host = engine_host
        self._limits = limits
        self._wall = wall
        self._nonces = Nonces()
        self._listener: socket.socket | None = None
        self._unproved: dict[asyncio.Task[None], None] = {}
        self._proved: set[asyncio.Task[None]] = set()
        self._told_at = -_TELL_EACH_S
        self._told: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.port = 0

    def open(self, host: str, port: int) -> None:
        """Listen; `port` 0 takes any and says which. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=256)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])

    async def run(self) -> None:
        """Take connections for ever. Needs `open`."""
        assert self._listener is not None, "the door is not open"
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                # Out of files, most likely: those that are connected go on.
                log.warning("the door takes no connection now: %s", error.strerror)
                await asyncio.sleep(_AFTER_ACCEPT_FAULT_S)
                continue
            self._receive(sock)
            await asyncio.sleep(0)  # a queue of strangers must not hold up the agent

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        if self._listener is not None:
            self._listener.close()
        tasks = [*self._unproved, *self._proved]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one connection ---------------------------------------------------------------------------

    def _receive(self, sock: socket.socket) -> None:
        if len(self._unproved) >= self._limits.unproved:
            # The oldest goes: a gateway proves itself in milliseconds, whoever waits is none.
            oldest = next(iter(self._unproved))
            del self._unproved[oldest]
            oldest.cancel()
            self._count("crowded")
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A caller whose machine has vanished would hold its place for ever: a kept connection is idle.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _ASK_IDLE_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _ASK_IDLE_EACH_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _ASK_IDLE_TIMES)
        task = asyncio.ensure_future(self._serve(sock))
        self._unproved[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._unproved.pop(task, None)
        self._proved.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection of the door failed", exc_info=error)

    async def _serve(self, sock: socket.socket) -> None:
        caller = Caller()
        try:
            line = await self._hear(caller, sock)
            if line is not None:
                await self._answer(caller, line)
            if caller.transport is not None:
                # Let the last line go out; a caller that does not take it is dropped.
                await asyncio.wait_for(caller.gone.wait(), self._limits.line_s)
        except TimeoutError:
            return
        except OSError:  # of TLS, or the connection broke
            self._count("broken")
        finally:
            caller.abort()
            if caller.transport is None:
                sock.close()

    async def _hear(self, caller: Caller, sock: socket.socket) -> bytes | None:
        """The caller's line after TLS; None where it got its refusal already. Raises OSError."""
        try:
            async with asyncio.timeout(self._limits.line_s):
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: caller,
                    sock,
                    ssl=self._certificate.context,
                    ssl_handshake_timeout=self._limits.line_s,
                    ssl_shutdown_timeout=self._limits.linger_s,
                )
                return await caller.line()
        except CallerLeft:
            self._refuse(caller, Fault.MALFORMED)
        except TimeoutError:
            self._refuse(caller, "late")
        return None

    async def _answer(self, caller: Caller, line: bytes) -> None:
        """Do what the line asks for; comes back when that is over."""
        asked = self._check(line)
        if not isinstance(asked, Line):
            self._refuse(caller, asked)
        elif asked.purpose is Purpose.PING:
            self._count("ping")
            caller.finish(contract.build_pong(self._key, asked.nonce))
        else:
            self._prove()
            if len(self._proved) > self._limits.connections:
                self._refuse(caller, "full")
            elif (engine := await self._connect(caller, asked)) is None:
                self._refuse(caller, "no_engine")
            else:
                self._count("open")
                caller.splice_to(engine, contract.OK)
                await caller.gone.wait()

    def _check(self, line: bytes) -> Line | str:
        now_s = self._wall()
        asked = contract.check_line(self._key, line, now_s=now_s, skew_s=self._limits.skew_s)
        if isinstance(asked, Fault):
            return asked
        until_s = asked.sent_at + self._limits.skew_s
        return asked if self._nonces.take(asked.nonce, until_s=until_s, now_s=now_s) else "replay"

    async def _connect(self, caller: Caller, asked: Line) -> EngineEnd | None:
        port = self._find_port(asked.task_id, asked.attempt)
        if port is None:
            return None
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_s):
                _, engine = await loop.create_connection(lambda: EngineEnd(caller), self._engine_host, port)
        except (OSError, TimeoutError):
            return None
        return engine

    def _prove(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._unproved.pop(task, None)
        self._proved.add(task)

    def _refuse(self, caller: Caller, why: str) -> None:
        self._count(why)
        caller.finish(contract.NO)

    def _count(self, outcome: str) -> None:
        self.counts[outcome] += 1
        if outcome in ("open", "ping"):
            return
        now = time.monotonic()
        if now - self._told_at >= _TELL_EACH_S:
            self._told_at = now
            fresh = self.counts - self._told
            self._told = self.counts.copy()
            shown = ", ".join(f"{n} {why}" for why, n in sorted(fresh.items()) if why not in ("open", "ping"))
            log.warning("the door refused connections: %s", shown)
