"""What an engine answers is anybody's: it may be long, packed or without an end (AGENT-08, AGENT-15)."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.contract.messages import HealthCheck
from agent.engines.catalog import ENGINES
from agent.supervisor import probe
from agent.supervisor.probe import ANSWER_BYTES, Prober, ProbeTarget

pytestmark = pytest.mark.req("AGENT-08", "AGENT-15")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
PIECE = b"# nothing\n" * 6554


class Engine:
    """`sent` counts the bytes of its answer that were taken from it."""

    def __init__(self) -> None:
        self.sent = 0
        self.port = 0


@asynccontextmanager
async def engine(head: bytes, body: bytes, *, endless: bool) -> AsyncIterator[Engine]:
    kept = Engine()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            writer.write(head)
            while True:
                writer.write(body)
                await writer.drain()
                kept.sent += len(body)
                if not endless:
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    kept.port = server.sockets[0].getsockname()[1]
    try:
        yield kept
    finally:
        server.close()


def target(port: int) -> ProbeTarget:
    check = HealthCheck(type=probe.ENGINE_AWARE, timeout_seconds=30)
    return ProbeTarget("127.0.0.1", port, check, ENGINES["vllm"], "key", api_port=port, model="m")


@asynccontextmanager
async def prober() -> AsyncIterator[Prober]:
    one = Prober()
    try:
        yield one
    finally:
        await one.close()


def test_an_answer_without_an_end_is_left_and_not_kept() -> None:
    async def ask() -> None:
        async with engine(HEAD + b"\r\n", PIECE, endless=True) as there, prober() as one:
            assert await one.work(target(there.port)) is None
            assert there.sent < 8 * ANSWER_BYTES  # what the sockets hold comes on top
        async with engine(HEAD + b"\r\n", PIECE, endless=True) as there, prober() as one:
            assert "more than" in await one.canary(target(there.port), 60)
            assert there.sent < 8 * ANSWER_BYTES

    asyncio.run(ask())


def test_a_packed_answer_is_not_unpacked() -> None:
    metrics = ENGINES["vllm"].metrics
    text = f"{metrics.progress_counter} 1\n{metrics.running_gauge} 1\n".encode()

    async def ask(head: bytes, body: bytes) -> object:
        async with engine(head + b"\r\n", body, endless=False) as there, prober() as one:
            return await one.work(target(there.port))

    assert asyncio.run(ask(HEAD, text)) is not None
    assert asyncio.run(ask(HEAD + b"Content-Encoding: gzip\r\n", gzip.compress(text))) is None
