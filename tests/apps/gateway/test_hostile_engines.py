"""What an engine can do to others by what it says or doesn't say: the pools, the answers, the counts."""

import asyncio
import contextlib
import json
import select
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.connection import Connection, Unreachable
from apps.gateway.plane.io.pool import Pool
from apps.usage.record import Ending
from tests.fakes.gateway import BODY, FakeSource, RunningGateway, make_replica, make_route, make_table, until
from tests.fakes.mock_engine import MockEngine

CHAT = "/v1/chat/completions"


@pytest.mark.req("GW-05")
@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("status", [420, 499])
async def test_a_status_without_a_name_goes_on_as_it_is(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, status: int
) -> None:
    engine.plan.status, engine.plan.body = status, b'{"error": {"message": "be calm"}}'
    async with http.post(gateway.url + CHAT, json=BODY) as response:
        assert response.status == status
        assert (await response.json())["error"]["message"] == "be calm"
    engine.plan.status, engine.plan.body = 200, b'{"error": {"message": "be calm", "code": %d}}' % status
    async with http.post(gateway.url + CHAT, json=BODY) as response:
        assert response.status == status


@pytest.mark.req("GW-12")
@pytest.mark.usefixtures("each_shell")
async def test_a_prompt_with_a_number_beyond_all_sizes_leaves_its_record(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.usage = None
    body = json.dumps(BODY).replace('"hello there"', "1e999")
    async with http.post(gateway.url + CHAT, data=body) as response:
        assert response.status == 200
    (record,) = gateway.records()
    assert (record.ending, record.estimated) == (Ending.COMPLETED, True)
    assert record.prompt_tokens > 5


@pytest.mark.req("GW-15")
async def test_a_pool_is_not_given_up_while_its_first_connection_is_made() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    pool = Pool(make_replica(server.sockets[0].getsockname()[1]), GatewayConfig())
    making = asyncio.create_task(pool.connect())
    await asyncio.sleep(0)
    assert pool.prune(), "who is forgotten now keeps its connection for ever"
    connection = await making
    assert pool.prune()
    connection.close()
    assert not pool.prune()
    server.close()


@pytest.mark.req("GW-15")
@pytest.mark.parametrize("host", ["a..b", "a" * 70, "\ud800"])
async def test_a_name_that_nobody_can_be_asked_for_is_not_reached(host: str) -> None:
    pool = Pool(make_replica(1, host=host), GatewayConfig())
    with pytest.raises(Unreachable) as failure:
        await pool.connect()
    assert failure.value.refused and not pool.prune()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
ANSWER = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
WHOLE = OK + b"Content-Length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


NO_ANSWER = OK + b"Content-Length: 2\r\n\r\n[]"
ELSEWHERE = b"HTTP/1.1 307 x\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"
FRAMED = (WHOLE, NO_ANSWER, ELSEWHERE)
"""Of the engines' words those after which a connection may serve again."""


class RawEngine:
    """Says the same bytes to every request as soon as its head is there, and closes then if `ends`."""

    def __init__(self, said: bytes, *, ends: bool = False) -> None:
        self.said, self.ends, self.calls, self.connections = said, ends, 0, 0

    async def __aenter__(self) -> "RawEngine":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.calls += 1
                writer.write(self.said)
                await writer.drain()
                if self.ends:
                    break
        writer.close()


@pytest.mark.req("GW-08", "GW-09", "GW-15")
@pytest.mark.parametrize(
    ("said", "ends", "status", "body"),
    [
        (WHOLE, False, 200, BODY),
        (WHOLE, True, 200, BODY),
        (WHOLE + WHOLE, False, 200, BODY),  # an answer to the next caller's question
        (b"", True, 502, BODY),
        (b"HTTP/1.1 200", True, 502, BODY),
        (b"SSH-2.0-x\r\n", False, 502, BODY),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 4000, False, 502, BODY),
        (OK + b"Content-Length: 99\r\n\r\n{", True, 502, BODY),
        (NO_ANSWER, False, 502, BODY),
        (b"HTTP/1.1 413 no\r\nContent-Length: 2\r\n\r\n{}", False, 413, {**BODY, "x": "y" * 12_000_000}),
        (ELSEWHERE, False, 502, BODY),
        (EVENTS + b"zz\r\n", False, 502, {**BODY, "stream": True}),
        (EVENTS + b"9\r\ndata: {}\n\r\n", True, 502, {**BODY, "stream": True}),
    ],
)
async def test_whatever_an_engine_says_nothing_stays_counted(
    source: FakeSource,
    tmp_path: Path,
    http: aiohttp.ClientSession,
    said: bytes,
    ends: bool,
    status: int,
    body: dict[str, Any],
) -> None:
    async with RawEngine(said, ends=ends) as engine:
        replica = make_replica(engine.port)
        source.table = make_table(make_route(replica))
        async with RunningGateway(source, tmp_path / "usage", probe_period_s=0.0) as gateway:
            for _ in range(2):
                async with http.post(gateway.url + CHAT, json=body) as response:
                    assert (response.status, b"prompt_tokens" in await response.read()) == (
                        status,
                        status == 200,
                    )
                await until(lambda: gateway.app.in_flight() == {})
            pool = gateway.app._parts.upstream._pool(replica)
            assert pool._lent == 0
            assert len(gateway.records()) == 2
            assert engine.connections == (1 if said in FRAMED and not ends else engine.calls)


@pytest.mark.req("GW-09", "GW-15")
async def test_a_caller_that_leaves_while_its_connection_is_made_leaves_nothing(tmp_path: Path) -> None:
    """The engine says nothing in answer to TLS, so that the connection is still being made."""
    async with RawEngine(b"") as engine:
        replica = make_replica(engine.port, tls=True, external=True, private_ok=True)
        pool = Pool(replica, GatewayConfig())
        making = asyncio.create_task(pool.connect())
        await until(lambda: engine.connections == 1)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        assert not pool.prune()


@pytest.fixture
async def asked_once() -> AsyncIterator[tuple[Pool, Connection, socket.socket]]:
    """A connection that has served a call, and the engine's end of it; nothing is read of it in between."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        pool = Pool(make_replica(server.getsockname()[1]), GatewayConfig())
        connection = await pool.connect()
        engine, _ = server.accept()
    connection.post(CHAT, "req-1", b"", b"{}")
    with engine:
        engine.sendall(WHOLE)
        await connection.head()
        got = bytearray()
        await connection.pump(got.extend)
        assert bytes(got) == ANSWER
        yield pool, connection, engine
    pool.close()


@pytest.mark.req("GW-15")
@pytest.mark.parametrize("said", [WHOLE, WHOLE[:1], b"\r\n", None])
async def test_what_an_engine_says_between_two_calls_is_the_answer_to_neither(
    asked_once: tuple[Pool, Connection, socket.socket], said: bytes | None
) -> None:
    """The loop has had no time to read it when the next call comes."""
    pool, connection, engine = asked_once
    connection.close()
    if said is None:
        engine.shutdown(socket.SHUT_WR)
    else:
        engine.sendall(said)
    there = select.poll()
    there.register(connection._transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)
    assert there.poll(30_000), "it has come, and the loop has not run since"
    assert pool.take() is None
    assert not pool.prune()


@pytest.mark.req("GW-15")
async def test_an_engine_that_says_nothing_between_two_calls_is_asked_again(
    asked_once: tuple[Pool, Connection, socket.socket],
) -> None:
    pool, connection, _ = asked_once
    connection.close()
    assert pool.take() is connection
