"""Callers that leave, engines that break: what the caller sees and what is billed."""

import asyncio
import json

import aiohttp
import pytest

from apps.usage.record import Ending
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

pytestmark = pytest.mark.usefixtures("each_shell")
CHAT = "/v1/chat/completions"
STREAM = {**BODY, "stream": True}


async def unused_port() -> int:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port


async def ask(http: aiohttp.ClientSession, gateway: RunningGateway, body: dict) -> tuple[int, dict, bytes]:
    async with http.post(gateway.url + CHAT, json=body) as response:
        return response.status, dict(response.headers), await response.read()


@pytest.mark.req("GW-09", "GW-12")
async def test_caller_leaves_a_stream(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.tokens, engine.plan.gap_s = 10_000, 0.02
    async with http.post(gateway.url + CHAT, json=STREAM) as response:
        got = b""
        while got.count(b"data:") < 5:
            got += await response.content.readany()
        response.close()
    async with steady_clock_of_the_loop() as clock:
        await until(lambda: engine.closed_at)
        assert clock.now() < 1.0
    await until(lambda: gateway.app.in_flight() == {} and gateway.records())
    (record,) = gateway.records()
    assert record.ending is Ending.CLIENT_GONE
    assert 5 <= record.completion_tokens < 50
    assert (record.prompt_tokens, record.estimated) == (3, True)


@pytest.mark.req("GW-09", "GW-12")
@pytest.mark.parametrize("stream", [False, True])
async def test_caller_leaves_before_any_answer(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, stream: bool
) -> None:
    engine.plan.delay_s = 60
    asking = asyncio.create_task(ask(http, gateway, {**BODY, "stream": stream}))
    await until(lambda: engine.running == 1)
    assert gateway.app.in_flight() == {"task-a": 1}
    asking.cancel()
    async with steady_clock_of_the_loop() as clock:
        await until(lambda: engine.running == 0)
        assert clock.now() < 1.0
    await until(lambda: gateway.app.in_flight() == {} and gateway.records())
    (record,) = gateway.records()
    assert (record.ending, record.http_status) == (Ending.CLIENT_GONE, 499)
    assert (record.prompt_tokens, record.completion_tokens, record.ttft_ms) == (0, 0, None)


@pytest.mark.req("GW-12")
async def test_caller_leaves_while_sending(gateway: RunningGateway, engine: MockEngine) -> None:
    _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 1000\r\n\r\n{{"
    )
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await until(gateway.records)
    (record,) = gateway.records()
    assert record.ending is Ending.CLIENT_GONE
    assert engine.seen == []


@pytest.mark.req("GW-09", "GW-12")
@pytest.mark.parametrize("cut", [1, 3])
async def test_engine_dies_mid_stream(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, cut: int
) -> None:
    engine.plan.tokens, engine.plan.cut_after, engine.plan.gap_s = 5, cut, 0.01
    status, _, body = await ask(http, gateway, STREAM)
    events = events_of(body)
    assert status == 200
    assert len(events) == cut + 1
    assert events[-1]["error"]["code"] == "upstream_truncated"
    assert b"[DONE]" not in body
    (record,) = gateway.records()
    assert record.ending is Ending.UPSTREAM_TRUNCATED
    assert (record.prompt_tokens, record.completion_tokens, record.estimated) == (3, cut, True)
    assert len(engine.seen) == 1, "nothing is retried after the first byte"


@pytest.mark.req("GW-09")
async def test_stream_without_done_is_no_silent_end(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.no_done = True
    _, _, body = await ask(http, gateway, STREAM)
    assert events_of(body)[-1]["error"]["code"] == "upstream_truncated"
    assert gateway.records()[0].ending is Ending.UPSTREAM_TRUNCATED


@pytest.mark.req("GW-09")
async def test_abort_is_an_error_event(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.abort_after = 2
    _, _, body = await ask(http, gateway, STREAM)
    assert events_of(body)[-1]["error"]["code"] == "upstream_aborted"
    assert b"[DONE]" not in body
    (record,) = gateway.records()
    assert (record.ending, record.completion_tokens) == (Ending.UPSTREAM_ERROR, 2)


@pytest.mark.req("GW-09")
async def test_abort_of_a_whole_answer_is_502(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.abort_after = 0
    status, _, body = await ask(http, gateway, BODY)
    assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_aborted")
    assert gateway.records()[0].prompt_tokens == 0


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("after", [0, 2])
async def test_engines_error_inside_a_stream(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, after: int
) -> None:
    engine.plan.error_after, engine.plan.gap_s = after, 0.01
    status, headers, body = await ask(http, gateway, STREAM)
    assert b"/srv/x.py" not in body
    assert b"[DONE]" not in body
    (record,) = gateway.records()
    assert record.ending is Ending.UPSTREAM_ERROR
    if after:
        assert status == 200
        assert events_of(body)[-1]["error"]["code"] == "upstream_error"
        assert record.completion_tokens == after
    else:
        # Nothing was sent yet, so the status can still tell the truth.
        assert (status, headers["Content-Type"]) == (502, "application/json")
        assert (record.prompt_tokens, record.completion_tokens) == (0, 0)


@pytest.mark.req("GW-01")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
async def test_engines_refusal_keeps_its_status(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, status: int, stream: bool
) -> None:
    told = {
        "error": {
            "message": "model engine-name: bad top_p",
            "type": "BadRequestError",
            "param": "top_p",
            "code": 7,
        }
    }
    engine.plan.status, engine.plan.body = status, json.dumps(told).encode()
    engine.plan.headers = {"Retry-After": "17"}
    got, headers, body = await ask(http, gateway, {**BODY, "stream": stream})
    assert got == status
    assert headers["Retry-After"] == "17"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["message"], error["param"]) == (f"model {MODEL}: bad top_p", "top_p")
    (record,) = gateway.records()
    assert (record.ending, record.http_status, record.prompt_tokens) == (Ending.UPSTREAM_ERROR, status, 0)


@pytest.mark.req("GW-01")
@pytest.mark.parametrize(
    ("status", "expected"),
    [(500, 502), (501, 400), (503, 503), (504, 504), (302, 502), (401, 502), (403, 502)],
)
async def test_engines_faults_become_gateway_statuses(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, status: int, expected: int
) -> None:
    engine.plan.status, engine.plan.body = status, b'{"error":{"message":"trace of /srv/secret.py"}}'
    got, headers, body = await ask(http, gateway, BODY)
    assert got == expected
    assert b"/srv" not in body
    assert ("Retry-After" in headers) == (status == 503)


@pytest.mark.req("GW-01")
@pytest.mark.parametrize("body", [b"not json", b"[1]", b'{"error":{"message":"odd","code":500}}', b""])
async def test_unreadable_answers_are_502(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, body: bytes
) -> None:
    engine.plan.body = body
    status, _, got = await ask(http, gateway, BODY)
    assert status == 502
    assert json.loads(got)["error"]["type"] == "server_error"
    assert gateway.records()[0].ending is Ending.UPSTREAM_ERROR


@pytest.mark.req("GW-10")
async def test_a_kept_connection_that_was_closed_is_no_fault_of_the_replica(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    assert (await ask(http, gateway, BODY))[0] == 200
    engine.plan.reset_before_answer = 1
    status, _, _ = await ask(http, gateway, STREAM)
    assert status == 200
    assert len(engine.seen) == 3
    assert len(gateway.records()) == 2
    assert gateway.app._parts.choosing.words() == {}


@pytest.mark.req("GW-10")
async def test_no_replica_is_asked_twice(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, each_shell: str
) -> None:
    engine.plan.reset_before_answer = 5
    status, _, body = await ask(http, gateway, BODY)
    assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_unreachable")
    # A kept connection may have ended by itself, so what failed on one is sent once more on a new one.
    assert len(engine.seen) == (2 if each_shell == "warm" else 1)
    (record,) = gateway.records()
    assert (record.ending, record.prompt_tokens) == (Ending.UPSTREAM_ERROR, 0)
    assert gateway.app.in_flight() == {}


@pytest.mark.req("GW-10", "GW-12")
async def test_dead_replica_is_passed_over(engine: MockEngine, http: aiohttp.ClientSession, tmp_path) -> None:
    dead = make_replica(await unused_port(), "task-dead")
    route = make_route(dead, make_replica(engine, "task-live"), balancing="round_robin")
    async with RunningGateway(FakeSource(make_table(route)), tmp_path) as gateway:
        for _ in range(6):
            status, _, _ = await ask(http, gateway, BODY)
            assert status == 200
        assert {record.task_id for record in gateway.records()} == {"task-live"}
        assert len(gateway.records()) == 6


@pytest.mark.req("GW-02")
async def test_all_replicas_dead_is_502(http: aiohttp.ClientSession, tmp_path) -> None:
    route = make_route(make_replica(await unused_port()))
    async with RunningGateway(FakeSource(make_table(route)), tmp_path) as gateway:
        status, _, body = await ask(http, gateway, BODY)
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_unreachable")


@pytest.mark.req("GW-01", "GW-12")
@pytest.mark.parametrize("stream", [False, True])
async def test_silent_engine_is_504(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path, stream: bool
) -> None:
    engine.plan.delay_s = 60
    async with RunningGateway(source, tmp_path, first_byte_timeout_s=0.2) as gateway:
        status, _, body = await ask(http, gateway, {**BODY, "stream": stream})
        assert (status, json.loads(body)["error"]["code"]) == (504, "upstream_timeout")
        assert (gateway.records()[0].ending, gateway.records()[0].http_status) == (Ending.UPSTREAM_ERROR, 504)
    await until(lambda: engine.running == 0)


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("limit", [{"gap_timeout_s": 0.5}, {"total_timeout_s": 0.7}])
async def test_engine_that_stops_mid_stream(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path, limit: dict
) -> None:
    engine.plan.hang_after, engine.plan.tokens = 2, 5
    async with RunningGateway(source, tmp_path, **limit) as gateway:
        _, _, body = await ask(http, gateway, STREAM)
        assert events_of(body)[-1]["error"]["code"] == "upstream_timeout"
        assert gateway.records()[0].completion_tokens == 2
    await until(lambda: engine.running == 0)


@pytest.mark.req("GW-09")
async def test_hanging_model_slows_no_other(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    async with MockEngine() as hung:
        hung.plan.delay_s = 60
        table = make_table(make_route(make_replica(engine)))
        table.routes["ten-aaaaaaaaaaaaaaaa"]["hung"] = (
            make_route(make_replica(hung, "task-h"), route_id="mr-h"),
        )
        async with RunningGateway(FakeSource(table), tmp_path, replica_connections=20) as gateway:
            stuck = [asyncio.create_task(ask(http, gateway, {**BODY, "model": "hung"})) for _ in range(20)]
            await until(lambda: hung.running == 20)
            status, headers, body = await ask(http, gateway, {**BODY, "model": "hung"})
            assert (status, json.loads(body)["error"]["code"]) == (503, "backend_busy")
            assert "Retry-After" in headers
            async with steady_clock_of_the_loop() as clock:
                status, _, _ = await ask(http, gateway, BODY)
                assert status == 200
                assert clock.now() < 5.0
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)


@pytest.mark.req("GW-09")
async def test_reader_that_never_reads_is_bounded_and_ended(
    source: FakeSource, engine: MockEngine, tmp_path
) -> None:
    engine.plan.tokens, engine.plan.piece = 2000, "x" * 20_000
    async with RunningGateway(source, tmp_path, client_write_timeout_s=0.5) as gateway:
        _reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        body = json.dumps(STREAM)
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await until(gateway.records)
        assert gateway.records()[0].ending is Ending.CLIENT_GONE
        assert gateway.records()[0].completion_tokens < 2000
        await until(lambda: engine.running == 0)
        writer.close()


@pytest.mark.req("GW-12")
async def test_shutdown_lets_streams_end(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    engine.plan.gap_s, engine.plan.tokens = 0.1, 5
    async with RunningGateway(source, tmp_path, shutdown_timeout_s=10.0) as gateway:
        async with http.post(gateway.url + CHAT, json=STREAM) as response:
            await response.content.readany()
            stopping = asyncio.create_task(gateway.app.shutdown())
            await until(lambda: not gateway.app.ready())
            status, _headers, body = await ask(http, gateway, BODY)
            assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_stopping")
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        await stopping
        endings = sorted(record.ending for record in gateway.records())
        assert endings == [Ending.COMPLETED, Ending.REFUSED]


@pytest.mark.req("GW-12")
async def test_shutdown_ends_streams_after_its_limit(
    source: FakeSource, engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    engine.plan.hang_after = 1
    async with RunningGateway(source, tmp_path, shutdown_timeout_s=0.1) as gateway:
        async with http.post(gateway.url + CHAT, json=STREAM) as response:
            first = await response.content.readany()
            await gateway.app.shutdown()
            body = first + await response.read()
        assert events_of(body)[-1]["error"]["code"] == "gateway_stopping"
        assert [record.ending for record in gateway.records()] == [Ending.UPSTREAM_ERROR]
