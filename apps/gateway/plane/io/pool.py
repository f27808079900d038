"""Connections to one attempt of one replica: kept, reused last in first out, made where none is left (GW-15).

Owns how a connection comes about, directly, through a node's door or by TLS under the system's authorities,
and for how long it is kept. Never shared between attempts. Never retries; its callers decide.
"""

import asyncio
import ipaddress
import socket
import ssl
from functools import lru_cache

from apps.core.addresses import is_public
from apps.core.pinning import pinning_context
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.connection import Connection, Known, Unreachable
from apps.gateway.plane.io.door import pass_door
from apps.routing.table import Replica


class Pool:
    """`replica` is the newest word of the table on it."""

    __slots__ = ("_config", "_heads", "_idle", "_lent", "_loop", "_retired", "known", "replica")

    def __init__(self, replica: Replica, config: GatewayConfig) -> None:
        self.replica = replica
        self._heads: dict[tuple[str, str], bytes] = {}
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self.known: Known | None = None
        self._lent = 0
        self._retired = False

    def serves(self, replica: Replica) -> bool:
        """Whether its connections lead to where the table says now; takes over what else has changed."""
        if replica is self.replica:
            return True
        if _way(replica) != _way(self.replica):
            return False
        if replica != self.replica:
            self._heads.clear()
        self.replica = replica
        return True

    def head(self, method: str, path: str) -> bytes:
        """The first lines of a request, each with its end; what is the same in all calls."""
        head = self._heads.get((method, path))
        if head is None:
            head = self._heads[method, path] = _build_head(self.replica, method, path)
        return head

    def take(self) -> Connection | None:
        """A kept connection that nobody else uses."""
        oldest = self._loop.time() - self._config.keepalive_s
        while self._idle:
            kept = self._idle.pop()
            if kept.idle_since >= oldest and kept.fit:
                self._lent += 1
                return kept
            kept.abort()
        return None

    async def connect(self) -> Connection:
        """A new one. Raises Unreachable where none comes about in time."""
        made = None
        self._lent += 1  # from now on, so that the pool is not given up meanwhile
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                made = await self._connect()
        # OSError is also of TLS and of a door that says no, ValueError of a name that is none.
        except (OSError, TimeoutError, ValueError):
            raise Unreachable(refused=True) from None
        finally:
            if made is None:
                self._lent -= 1
        return made

    def park(self, connection: Connection) -> None:
        """Takes one back that can serve again."""
        self._lent -= 1
        if self._retired:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def drop(self) -> None:
        """One that was lent is no more."""
        self._lent -= 1

    def forget(self, connection: Connection) -> None:
        """It was closed from the other side."""
        if connection in self._idle:
            self._idle.remove(connection)

    def prune(self) -> bool:
        """Closes what was idle for too long; False when no connection is left."""
        oldest = self._loop.time() - self._config.keepalive_s
        while self._idle and self._idle[0].idle_since < oldest:
            self._idle.pop(0).abort()
        return bool(self._idle or self._lent)

    def close(self) -> None:
        self._retired = True
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self) -> Connection:
        replica = self.replica
        context = name = None
        hosts = [replica.host if replica.door is None else replica.door.host]
        port = replica.port if replica.door is None else replica.door.port
        if replica.door is not None:
            context = pinning_context()
        elif replica.tls:
            context, name = _public_context(), replica.host
        if replica.external and not replica.private_ok:
            hosts = await self._public_addresses(replica.host, port)
        last: OSError = ConnectionRefusedError("no address")
        for host in hosts:
            try:
                transport, connection = await self._loop.create_connection(
                    lambda: Connection(self), host, port, ssl=context, server_hostname=name
                )
                break
            except OSError as error:
                last = error
        else:
            raise last
        end_when_silent(transport, self._config.peer_silent_s)
        if replica.door is not None:
            await pass_door(transport, connection, replica, replica.door)
        return connection

    async def _public_addresses(self, host: str, port: int) -> list[str]:
        """Asked here and connected to as they are, so that no second answer of the name leads elsewhere."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [
            str(at[0]) for *_, at in found if is_public(ipaddress.ip_address(str(at[0]).partition("%")[0]))
        ]


def end_when_silent(transport: asyncio.BaseTransport, silent_s: float) -> None:
    """What was sent must be acknowledged within `silent_s`, and while nothing is sent the other machine
    is asked in the same time. It is the network that answers: a busy engine takes as long as it needs."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silent_s * 1000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(silent_s / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(silent_s / 5)))


def _way(replica: Replica) -> tuple[object, ...]:
    """What must be the same for a connection to be of use; a node's clock may go astray meanwhile."""
    door = replica.door
    through = None if door is None else (door.host, door.port, door.certificate_sha256, door.key)
    return replica.host, replica.port, through, replica.tls, replica.private_ok


@lru_cache(maxsize=1)
def _public_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _build_head(replica: Replica, method: str, path: str) -> bytes:
    at = replica if replica.door is None else replica.door
    host = f"[{at.host}]" if ":" in at.host else at.host
    lines = [
        f"{method} {replica.path_prefix}{path} HTTP/1.1",
        f"Host: {host}:{at.port}",
        "Accept-Encoding: identity",
        "User-Agent: heteroflow-gateway",
    ]
    if method == "POST":
        lines.append("Content-Type: application/json")
    if replica.engine_key:
        lines.append(f"Authorization: Bearer {replica.engine_key}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
