"""A real door in the test's own loop, and a bare client of it.

`python -m tests.fakes.door ENGINE_PORT FOLDER` runs one as a process of its own: it prints its port
and leads task-a, attempt 1, to the engine.
"""

import asyncio
import secrets
import ssl
import sys
import time
from pathlib import Path
from typing import Any

from agent.contract.door import build_line, build_ping, derive_key
from agent.door.certificate import load_certificate
from agent.door.listener import Door, Limits

SECRET_SHA256 = "ab" * 32
KEY = derive_key(SECRET_SHA256)


class RunningDoor:
    """`ports` says which attempts run, and may be changed at any moment; `wall` is its clock."""

    def __init__(
        self, folder: Path, ports: dict[tuple[str, int], int] | None = None, *, port: int = 0, **limits: Any
    ) -> None:
        self.ports = ports or {}
        self.wall = time.time
        self.certificate = load_certificate(folder)
        self._port = port
        self.door = Door(
            key=KEY,
            certificate=self.certificate,
            find_port=lambda task_id, attempt: self.ports.get((task_id, attempt)),
            engine_host="127.0.0.1",
            limits=Limits(**limits),
            wall=lambda: self.wall(),
        )

    async def __aenter__(self) -> "RunningDoor":
        self.door.open("127.0.0.1", self._port)
        self._running = asyncio.ensure_future(self.door.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.door.close()

    @property
    def port(self) -> int:
        return self.door.port

    @property
    def sha256(self) -> str:
        return self.certificate.sha256


def trusting() -> ssl.SSLContext:
    """A client's context that takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def line_for(task_id: str = "task-a", attempt: int = 1, *, key: bytes = KEY, now_s: float = 0.0) -> bytes:
    return build_line(
        key, task_id=task_id, attempt=attempt, now_s=now_s or time.time(), nonce=secrets.token_hex(16)
    )


def ping_for(nonce: str) -> bytes:
    return build_ping(KEY, now_s=time.time(), nonce=nonce)


async def knock(port: int, line: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection to a door on which this line was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(), limit=2**16)
    writer.write(line)
    return reader, writer


async def _serve(engine_port: int, folder: Path) -> None:
    async with RunningDoor(folder, {("task-a", 1): engine_port}) as door:
        print(door.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), Path(sys.argv[2])))
