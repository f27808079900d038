"""The gateway's own server: HTTP/1.1 on a socket, without ASGI's messages and tasks between (GW-15).

Owns the socket and the callers' connections, from the first to the graceful end. Serves nothing itself.
"""

import asyncio
import socket
from typing import Protocol

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.io import meters
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.caller import Caller, Leavable
from apps.gateway.plane.io.outbox import Outbox
from apps.gateway.plane.io.reply import Reply
from apps.gateway.plane.io.straight import Carrier, Head
from apps.gateway.plane.io.watch import Watch

BACKLOG = 4096
"""asyncio's own 100 let callers that come all at once hang for seconds."""


class Answering(Protocol):
    def write_records(self) -> None:
        """Called before the last bytes of answers go out."""

    async def answer(self, asked: Asked, reply: Reply) -> None: ...

    def begin(self, head: Head, body: bytes, reply: Reply, carrier: Carrier) -> Leavable | None:
        """Begins an ordinary call at once; None where it isn't one, and nothing has happened."""


class Listener:
    """`start`, then `drain` when no new connection is wanted, and `stop` once the calls have ended."""

    def __init__(self, gateway: Answering, config: GatewayConfig) -> None:
        self.gateway = gateway
        self.config = config
        self.outbox = Outbox(gateway.write_records)
        self.draining = False
        self._watch = Watch(config.deadline_step_s)
        self._callers: set[Caller] = set()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Listens on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Caller(self), sock=sock, backlog=BACKLOG)

    def drain(self) -> None:
        """Takes no new connection, and closes those on which nothing is under way; others end with that."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for caller in list(self._callers):
            caller.drain()

    def stop(self) -> None:
        """Ends what is left."""
        self.drain()
        for caller in list(self._callers):
            caller.abort()

    def enter(self, caller: Caller) -> None:
        self._callers.add(caller)
        self._watch.add(caller)

    def leave(self, caller: Caller) -> None:
        self._callers.discard(caller)
        self._watch.drop(caller)

    def refused(self, fault: CallError) -> None:
        """What was no request at all leaves no record, and is counted."""
        meters.count_turned_away(fault.status)


def bind(host: str, port: int) -> socket.socket:
    """A socket for `start`; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, else asyncio leaves Nagle's delay on.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
