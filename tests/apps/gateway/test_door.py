"""Calls through a node's door: TLS with a pinned certificate, the line, then HTTP as ever (AGENT-16)."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from openai import AsyncOpenAI

from agent.contract.door import derive_key
from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.io.pool import Pool
from apps.routing.table import Door, Replica
from apps.usage.record import Ending
from tests.apps.gateway.test_faults import CHAT, STREAM, ask, unused_port
from tests.fakes.door import KEY, RunningDoor
from tests.fakes.gateway import (
    BODY,
    MODEL,
    SECRET,
    FakeSource,
    RunningGateway,
    events_of,
    make_replica,
    make_route,
    make_table,
    until,
)
from tests.fakes.mock_engine import MockEngine
from tests.steady import steady_clock_of_the_loop

pytestmark = pytest.mark.req("AGENT-16")


def behind(door: RunningDoor, task_id: str = "task-a", attempt: int = 1, **changes: Any) -> Replica:
    """A replica that can be reached through the door only: its own port is none."""
    values = {"host": "127.0.0.1", "port": door.port, "certificate_sha256": door.sha256, "key": KEY}
    return make_replica(1, task_id, attempt=attempt, door=Door(**{**values, **changes}))


@pytest.fixture
async def door(engine: MockEngine, tmp_path: Path) -> AsyncIterator[RunningDoor]:
    async with RunningDoor(tmp_path, {("task-a", 1): engine.port}) as running:
        yield running


@pytest.fixture
def source(door: RunningDoor) -> FakeSource:
    return FakeSource(make_table(make_route(behind(door))))


async def test_streams_and_whole_answers_pass(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, door: RunningDoor
) -> None:
    assert (await ask(http, gateway, BODY))[0] == 200
    status, _, body = await ask(http, gateway, STREAM)
    assert status == 200
    assert events_of(body)[-1] == "[DONE]"
    assert engine.seen_headers[0]["X-Request-ID"]
    # One connection served both: the door's cost is a connection's, not a call's.
    assert door.door.counts == {"open": 1}


async def test_the_sdk_streams_through_it(gateway: RunningGateway, engine: MockEngine) -> None:
    engine.plan.tokens = 20
    client = AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=SECRET, max_retries=0)
    stream = await client.chat.completions.create(model=MODEL, messages=BODY["messages"], stream=True)
    text = "".join([part.choices[0].delta.content or "" async for part in stream if part.choices])
    await client.close()
    assert text == "w" * 20


async def test_a_big_body_passes_whole(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "y" * 5_000_000}]}
    assert (await ask(http, gateway, body))[0] == 200
    assert engine.seen[-1]["messages"] == body["messages"]


async def test_a_kept_connection_belongs_to_one_attempt(
    gateway: RunningGateway,
    engine: MockEngine,
    http: aiohttp.ClientSession,
    door: RunningDoor,
    source: FakeSource,
) -> None:
    await ask(http, gateway, BODY)
    door.ports["task-a", 2] = engine.port
    source.table = make_table(make_route(behind(door, attempt=2)), version=2)
    await until(lambda: gateway.app._tables.current.version == 2)
    assert (await ask(http, gateway, BODY))[0] == 200
    assert door.door.counts == {"open": 2}


async def test_another_certificate_gets_nothing_and_is_sidelined(
    gateway: RunningGateway,
    http: aiohttp.ClientSession,
    door: RunningDoor,
    source: FakeSource,
) -> None:
    source.table = make_table(make_route(behind(door, certificate_sha256="cd" * 32)), version=2)
    await until(lambda: gateway.app._tables.current.version == 2)
    status, _, body = await ask(http, gateway, BODY)
    assert status == 502
    assert b"127.0.0.1" not in body and b"cd" * 32 not in body
    assert gateway.app._parts.choosing.words()["task-a"].state == "passed_over"
    assert not door.door.counts["open"]
    assert sum(door.door.counts[why] for why in ("mac", "skew", "no_engine", "replay")) == 0  # no line came


@pytest.mark.parametrize("off_s", [-600.0, 600.0])
async def test_a_clock_ten_minutes_off_is_met_on_its_own_terms(
    off_s: float,
    gateway: RunningGateway,
    http: aiohttp.ClientSession,
    door: RunningDoor,
    source: FakeSource,
) -> None:
    door.wall = lambda: time.time() + off_s
    replica = behind(door)
    assert replica.door is not None
    dated = msgspec.structs.replace(replica.door, skew_s=off_s)
    source.table = make_table(make_route(msgspec.structs.replace(replica, door=dated)), version=2)
    await until(lambda: gateway.app._tables.current.version == 2)
    assert (await ask(http, gateway, BODY))[0] == 200
    assert door.door.counts == {"open": 1}


@pytest.mark.parametrize("why", ["attempt", "key", "clock", "closed", "engine_down"])
async def test_a_door_that_does_not_open_is_502_and_another_replica_serves(
    why: str,
    gateway: RunningGateway,
    engine: MockEngine,
    http: aiohttp.ClientSession,
    door: RunningDoor,
    source: FakeSource,
) -> None:
    bad = behind(door, "task-bad")
    if why == "key":
        bad = behind(door, "task-bad", key=derive_key("cd" * 32))
    elif why == "closed":
        bad = behind(door, "task-bad", port=await unused_port())
    elif why == "engine_down":
        door.ports["task-bad", 1] = await unused_port()
    elif why == "clock":
        door.ports["task-bad", 1] = engine.port
        door.wall = lambda: time.time() + 120
    source.table = make_table(make_route(bad), version=2)
    await until(lambda: gateway.app._tables.current.version == 2)
    assert (await ask(http, gateway, BODY))[0] == 502
    assert gateway.app._parts.choosing.words()["task-bad"].state == "passed_over"
    assert engine.seen == []
    if why != "clock":
        source.table = make_table(make_route(bad, behind(door)), version=3)
        await until(lambda: gateway.app._tables.current.version == 3)
        assert [(await ask(http, gateway, BODY))[0] for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("tls", [False, True])
async def test_a_port_that_says_nothing_is_given_up_in_time(
    tls: bool, source: FakeSource, http: aiohttp.ClientSession, door: RunningDoor, tmp_path: Path
) -> None:
    context = door.certificate.context if tls else None
    server = await asyncio.start_server(lambda r, w: asyncio.sleep(60), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    source.table = make_table(make_route(behind(door, port=port)))
    async with (
        RunningGateway(source, tmp_path / "usage", connect_timeout_s=0.4) as gateway,
        steady_clock_of_the_loop() as clock,
    ):
        assert (await ask(http, gateway, BODY))[0] == 502
        assert clock.now() < 3
    server.close()


@pytest.mark.req("GW-09")
async def test_a_caller_that_leaves_frees_the_engine(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.tokens, engine.plan.gap_s = 10_000, 0.02
    async with http.post(gateway.url + CHAT, json=STREAM) as response:
        await response.content.readany()
        response.close()
    async with steady_clock_of_the_loop() as clock:
        await until(lambda: engine.closed_at)
        assert clock.now() < 1.0
    await until(gateway.records)
    assert gateway.records()[0].ending is Ending.CLIENT_GONE


@pytest.mark.req("GW-09")
async def test_a_caller_that_leaves_before_the_first_byte_frees_the_engine(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.delay_s = 60
    with pytest.raises(asyncio.TimeoutError):
        async with asyncio.timeout(0.5):
            await http.post(gateway.url + CHAT, json=BODY)
    async with steady_clock_of_the_loop() as clock:
        await until(lambda: engine.closed_at)
        assert clock.now() < 1.0


async def test_an_engine_that_breaks_off_is_told_as_without_a_door(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.cut_after = 2
    _, _, body = await ask(http, gateway, {**STREAM})
    last = events_of(body)[-1]
    assert last != "[DONE]" and last["error"]["code"] == "upstream_truncated"


@pytest.mark.parametrize("through_door", [True, False])
async def test_a_machine_that_falls_silent_ends_its_connections(
    through_door: bool, engine: MockEngine, door: RunningDoor
) -> None:
    replica = behind(door) if through_door else make_replica(engine)
    pool = Pool(replica, GatewayConfig(peer_silent_s=7))
    connection = await pool.connect()
    sock: socket.socket = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 4
    connection.abort()


def test_what_opens_the_door_is_never_shown() -> None:
    shown = Door(host="h", port=1, certificate_sha256="ab" * 32, key=KEY)
    replica = make_replica(1, door=shown)
    for text in (repr(shown), repr(replica), str(replica)):
        assert repr(KEY) not in text and KEY.hex() not in text
