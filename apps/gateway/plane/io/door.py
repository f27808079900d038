"""Connections to replicas behind a node's door: TLS with the pinned certificate, the line, then HTTP.

Owns what happens on a connection before aiohttp gets it (AGENT-16). The line is sent only to the
certificate that the node's heartbeat named, and nothing of a call is sent before the door has said
that it is connected to the engine, so that every failure in here is safe to repeat (GW-10).
"""

import asyncio
import secrets
import socket
import time
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from agent.contract.door import OK, build_line
from apps.core.pinning import has_certificate, pinning_context
from apps.routing.table import Replica


class DoorPass(aiohttp.Fingerprint):
    """What opens one attempt's way through a door; given as a request's `ssl`, so that it is part of
    aiohttp's key of kept connections: one serves one attempt only."""

    def __init__(self, replica: Replica) -> None:
        if replica.door is None:
            raise ValueError("the replica is not behind a door")
        super().__init__(bytes.fromhex(replica.door.certificate_sha256))
        self.sha256 = replica.door.certificate_sha256
        self._key = replica.door.key
        self._skew_s = replica.door.skew_s
        self._attempt = (replica.task_id, replica.attempt)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DoorPass) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, bytes, tuple[str, int]]:
        return self.sha256, self._key, self._attempt

    def line(self) -> bytes:
        """A line for one connection."""
        task_id, attempt = self._attempt
        nonce = secrets.token_hex(16)
        now_s = time.time() + self._skew_s
        return build_line(self._key, task_id=task_id, attempt=attempt, now_s=now_s, nonce=nonce)


class DoorConnector(aiohttp.TCPConnector):
    """aiohttp's connector, for replicas with and without a door. A machine that answers nothing on the
    network for `peer_silent_s` ends its connections, which would else wait for an engine's first byte."""

    def __init__(self, *, peer_silent_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._peer_silent_s = peer_silent_s

    async def _wrap_create_connection(
        self, *args: Any, req: aiohttp.ClientRequest, timeout: aiohttp.ClientTimeout, **kwargs: Any
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Raises ClientConnectorError or TimeoutError: also for what happened after TCP."""
        door = req.ssl
        if not isinstance(door, DoorPass):
            transport, protocol = await super()._wrap_create_connection(
                *args, req=req, timeout=timeout, **kwargs
            )
            _end_when_silent(transport, self._peer_silent_s)
            return transport, protocol
        kwargs["ssl"] = pinning_context()
        async with asyncio.timeout(timeout.sock_connect):
            transport, protocol = await super()._wrap_create_connection(
                *args, req=req, timeout=timeout, **kwargs
            )
            _end_when_silent(transport, self._peer_silent_s)
            try:
                await _open(transport, protocol, door)
            except OSError as error:
                transport.abort()
                raise aiohttp.ClientConnectorError(req.connection_key, error) from None
            except BaseException:
                transport.abort()
                raise
        return transport, protocol


def _end_when_silent(transport: asyncio.Transport, silent_s: float) -> None:
    """What was sent must be acknowledged within `silent_s`, and while nothing is sent the other machine
    is asked in the same time. It is the network that answers: a busy engine takes as long as it needs."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(silent_s * 1000))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(silent_s / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(silent_s / 5)))


async def _open(transport: asyncio.Transport, protocol: asyncio.Protocol, door: DoorPass) -> None:
    """Raises ConnectionError for another certificate, and where the door does not let us in."""
    if not has_certificate(transport, door.sha256):
        raise ConnectionRefusedError("the door shows another certificate than its node named")
    answer = _Answer()
    transport.set_protocol(answer)
    transport.write(door.line())
    await answer.opened
    transport.set_protocol(protocol)


class _Answer(asyncio.Protocol):
    """Waits for the door's word on a line."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self.opened.done():
            return
        if self._got == OK:
            self.opened.set_result(None)
        elif not OK.startswith(self._got):
            self.opened.set_exception(ConnectionRefusedError("the door refused the line"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(ConnectionResetError("the door ended the connection"))
