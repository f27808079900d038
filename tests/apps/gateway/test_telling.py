"""What a gateway says of its calls, and calls that wait for a replica that just left to sleep (SLEEP-06)."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from apps.gateway.plane.io.connection import Connection
from apps.routing.load import Load
from apps.usage.record import Ending
from tests.apps.gateway.test_faults import ask, unused_port
from tests.fakes.gateway import (
    BODY,
    FakeSource,
    RunningGateway,
    events_of,
    make_replica,
    make_route,
    make_table,
    until,
)
from tests.fakes.mock_engine import MockEngine

pytestmark = pytest.mark.req("SLEEP-06")
QUICK: dict[str, Any] = {"version_poll_s": 0.02, "load_say_s": 0.02, "shutdown_timeout_s": 1.0}


async def test_one_word_holds_table_calls_and_use_and_none_is_said_twice(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engine.plan.delay_s = 60
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        await until(lambda: source.said)
        assert source.said == [Load(version=1)]
        asking = asyncio.create_task(ask(http, gateway, BODY))
        await until(lambda: source.said[-1].in_flight)
        word = source.said[-1]
        assert (word.version, word.in_flight, set(word.used)) == (1, {"task-a": 1}, {"tg-a"})
        asking.cancel()
        await until(lambda: not source.said[-1].in_flight)
        assert source.said[-1].used["tg-a"] > word.used["tg-a"]  # its end counts as use
        source.table = make_table(make_route(), version=2)
        await until(lambda: source.said[-1].version == 2)
        assert len(source.said) == 4 and not source.left
    assert source.left and len(source.said) == 5 and source.said[-1].in_flight == {}


async def test_an_unchanged_word_is_repeated_and_old_use_left_out(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with RunningGateway(source, tmp_path, **QUICK, load_repeat_s=0.05, load_keep_s=0.2) as gateway:
        await ask(http, gateway, BODY)
        await until(lambda: source.said and source.said[-1].used)
        await until(lambda: not source.said[-1].used)
        await until(lambda: len(source.said) > 5 and source.said[-1] == source.said[-2])


async def test_what_could_not_be_said_is_said_later(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        await until(lambda: source.said)
        source.broken = True
        assert (await ask(http, gateway, BODY))[0] == 200
        await until(lambda: gateway.app._teller is not None and gateway.app._teller._failing)
        assert source.said == [Load(version=1)]
        source.broken = False
        await until(lambda: "tg-a" in source.said[-1].used)


async def test_a_refused_call_is_use_too(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source.table = make_table(make_route())
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        assert (await ask(http, gateway, BODY))[0] == 503
        await until(lambda: source.said and set(source.said[-1].used) == {"tg-a"})


async def test_a_call_waits_for_a_replica_that_may_be_called_back(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source.table = make_table(make_route(dozing=True))
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        asking = [asyncio.create_task(ask(http, gateway, BODY)) for _ in range(2)]
        await until(lambda: source.said and source.said[-1].held == {"tg-a": 2})
        assert engine.running == 0 and not any(one.done() for one in asking)
        source.table = make_table(make_route(make_replica(engine)), version=2)
        assert [(await one)[0] for one in asking] == [200, 200]
        await until(lambda: source.said[-1].held == {})
        assert {record.ending for record in gateway.records()} == {Ending.COMPLETED}


async def test_a_call_waits_no_longer_than_it_may_be_called_back(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source.table = make_table(make_route(dozing=True))
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        asking = asyncio.create_task(ask(http, gateway, BODY))
        await until(lambda: source.said and source.said[-1].held)
        source.table = make_table(make_route(), version=2)  # it was put to sleep
        status, headers, body = await asking
        assert (status, b"no_backend" in body, "Retry-After" in headers) == (503, True, True)
        await until(lambda: source.said[-1].held == {} and source.said[-1].used)


async def test_a_caller_that_leaves_waits_no_more(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source.table = make_table(make_route(dozing=True))
    async with RunningGateway(source, tmp_path, **QUICK) as gateway:
        asking = asyncio.create_task(ask(http, gateway, BODY))
        await until(lambda: source.said and source.said[-1].held)
        asking.cancel()
        await until(lambda: source.said[-1].held == {})
        await until(gateway.records)
        assert gateway.records()[0].ending is Ending.CLIENT_GONE


async def test_it_waits_for_so_long_only(
    source: FakeSource, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    source.table = make_table(make_route(dozing=True))
    async with RunningGateway(source, tmp_path, **QUICK, call_back_wait_s=0.1) as gateway:
        assert (await ask(http, gateway, BODY))[0] == 503


async def test_a_second_try_goes_by_the_present_table(
    source: FakeSource,
    engine: MockEngine,
    http: aiohttp.ClientSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replica of the first try hangs up after the other has left: that one gets no new call, though it
    stood in the table when the call came."""
    async with MockEngine() as left:
        engine.plan.reset_before_answer = 1
        first, second = make_replica(engine, "task-a"), make_replica(left, "task-b")
        gone = make_replica(await unused_port(), "task-c")
        source.table = make_table(make_route(first, priority=0), make_route(second, priority=1))
        async with RunningGateway(source, tmp_path, **QUICK) as gateway:
            tables = gateway.app._tables
            heard = Connection.head

            async def slow(connection: Connection) -> None:
                try:
                    await heard(connection)
                finally:
                    if connection._pool.replica.task_id == "task-a" and source.table.version == 1:
                        source.table = make_table(make_route(gone), version=2)
                        await tables.refresh()

            monkeypatch.setattr(Connection, "head", slow)
            status, _, _ = await ask(http, gateway, BODY)
        assert (status, left.seen) == (502, [])


async def test_a_drain_refuses_new_calls_and_lets_running_ones_end(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.tokens, engine.plan.gap_s = 20, 0.05
    stream = asyncio.create_task(ask(http, gateway, {**BODY, "stream": True}))
    await until(lambda: engine.running == 1)
    assert not gateway.app.drained()
    gateway.app.drain()
    assert not gateway.app.drained() and not gateway.app.ready()
    assert (await ask(http, gateway, BODY))[0] == 503
    status, _, body = await stream
    assert (status, events_of(body)[-1]) == (200, "[DONE]")
    await until(gateway.app.drained)
