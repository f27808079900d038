"""The way through a node's door: TLS with the pinned certificate, the line, then HTTP (AGENT-16).

Owns what happens on such a connection before HTTP does. The line is sent only to the certificate that the
node's heartbeat named, and nothing of a call is sent before the door has said that it is connected to the
engine, so that every failure in here is safe to repeat (GW-10).
"""

import asyncio
import secrets
import time

from agent.contract.door import OK, build_line
from apps.core.pinning import has_certificate
from apps.routing.table import Door, Replica


async def pass_door(
    transport: asyncio.Transport, protocol: asyncio.Protocol, replica: Replica, door: Door
) -> None:
    """Leaves the connection open for `protocol`, or closed. Raises ConnectionError for another certificate,
    and where the door does not let us in."""
    try:
        if not has_certificate(transport, door.certificate_sha256):
            raise ConnectionRefusedError("the door shows another certificate than its node named")
        answer = _Answer()
        transport.set_protocol(answer)
        nonce, now_s = secrets.token_hex(16), time.time() + door.skew_s
        transport.write(
            build_line(door.key, task_id=replica.task_id, attempt=replica.attempt, now_s=now_s, nonce=nonce)
        )
        await answer.opened
        transport.set_protocol(protocol)
    except BaseException:
        transport.abort()
        raise


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
