"""Whole and streamed answers as a caller sees them, and the record that each leaves."""

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

pytestmark = pytest.mark.usefixtures("each_shell")
CHAT = "/v1/chat/completions"
ASKS_USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.req("GW-01", "GW-05", "GW-12")
async def test_whole_answer_is_renamed_and_recorded(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    async with http.post(
        gateway.url + CHAT, json={**BODY, "temperature": 0.25, "x": [1, {"y": None}]}
    ) as response:
        answer = await response.json()
    assert response.status == 200
    assert answer["model"] == MODEL
    assert engine.seen == [{**BODY, "model": "engine-name", "temperature": 0.25, "x": [1, {"y": None}]}]
    (record,) = gateway.records()
    assert response.headers["x-request-id"] == record.request_id == engine.seen_headers[0]["X-Request-ID"]
    assert (record.ending, record.http_status, record.stream) == (Ending.COMPLETED, 200, False)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (21, 3, 20)
    assert (record.tenant_slug, record.member, record.model) == ("acme", "mia", MODEL)
    assert (record.route_id, record.group_id, record.task_id, record.attempt) == ("mr-a", "tg-a", "task-a", 1)
    assert not record.estimated
    assert record.ttft_ms is not None
    assert gateway.app.in_flight() == {}


@pytest.mark.req("GW-01")
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_the_other_paths(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, path: str
) -> None:
    async with http.post(gateway.url + path, json={"model": MODEL, "prompt": "a", "input": "a"}) as response:
        answer = await response.json()
    assert (response.status, answer["model"]) == (200, MODEL)
    (record,) = gateway.records()
    assert record.path == path
    assert record.prompt_tokens == (5 if path.endswith("embeddings") else 21)


@pytest.mark.req("GW-09")
async def test_engine_key_goes_up_and_the_callers_never(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine, engine_key="secret-of-engine"))))
    async with (
        RunningGateway(source, tmp_path) as gateway,
        http.post(gateway.url + CHAT, json=BODY, headers={"Cookie": "a=b", "X-Api-Key": SECRET}) as answer,
    ):
        assert answer.status == 200
    (headers,) = engine.seen_headers
    assert headers["Authorization"] == "Bearer secret-of-engine"
    assert SECRET not in str(headers)
    assert "Cookie" not in headers


@pytest.mark.req("GW-15")
@pytest.mark.parametrize("fits", [True, False])
async def test_a_trace_goes_on_to_the_engine(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession, fits: bool
) -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01" if fits else "not one of W3C's"
    trace = {"traceparent": parent, "tracestate": "vendor=1"}
    async with http.post(gateway.url + CHAT, json=BODY, headers=trace) as response:
        assert response.status == 200
    passed = {name: value for name, value in engine.seen_headers[0].items() if name.startswith("trace")}
    assert passed == (trace if fits else {})


@pytest.mark.req("GW-09", "GW-12")
@pytest.mark.parametrize(
    "asked", [{}, {"stream_options": {"include_usage": False}}, {"stream_options": None}]
)
@pytest.mark.parametrize("on_last_chunk", [False, True])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
async def test_usage_is_asked_for_and_hidden(
    gateway: RunningGateway,
    engine: MockEngine,
    http: aiohttp.ClientSession,
    asked: dict,
    on_last_chunk: bool,
    path: str,
) -> None:
    engine.plan.usage_on_last_chunk = on_last_chunk
    async with http.post(gateway.url + path, json={**BODY, "stream": True, **asked}) as response:
        body = await response.read()
    assert engine.seen[0]["stream_options"] == {"include_usage": True}
    events = events_of(body)
    assert b"usage" not in body
    assert [event["model"] for event in events[:-1]] == [MODEL] * 4
    assert events[-1] == "[DONE]"
    (record,) = gateway.records()
    assert (record.ending, record.prompt_tokens, record.completion_tokens) == (Ending.COMPLETED, 21, 3)
    assert not record.estimated
    assert record.stream


@pytest.mark.req("GW-12")
async def test_who_asks_for_usage_gets_exactly_one(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True, **ASKS_USAGE}) as response:
        events = events_of(await response.read())
    told = [event for event in events[:-1] if event.get("usage")]
    assert len(told) == 1
    assert told[0]["usage"] == engine.plan.usage


@pytest.mark.req("GW-09")
async def test_stream_headers_let_nothing_hold_it_back(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    packed = {"Accept-Encoding": "gzip, br"}
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}, headers=packed) as response:
        assert response.headers["Cache-Control"] == "no-cache, no-transform"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.content_type == "text/event-stream"
        assert "Content-Length" not in response.headers
        assert "Content-Encoding" not in response.headers
        await response.read()


@pytest.mark.req("GW-09")
async def test_events_pass_as_they_come(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.hang_after = 2
    engine.plan.tokens = 5
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        got = b""
        while got.count(b"data:") < 2:
            got += await response.content.readany()
        # The engine has not ended and never will: what it said is here all the same.
        assert engine.running == 1


@pytest.mark.req("GW-09")
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
async def test_unchanged_streams_keep_every_byte(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path, line_end: str
) -> None:
    engine.plan.line_end = line_end
    engine.plan.chunk_bytes = 7
    engine.plan.piece = "é\u2028🙂"
    source = FakeSource(make_table(make_route(make_replica(engine, served_model_name=MODEL))))
    async with RunningGateway(source, tmp_path) as gateway:
        asked = {**BODY, "stream": True, **ASKS_USAGE}
        async with http.post(gateway.url + CHAT, json=asked) as response:
            through = await response.read()
    async with http.post(f"http://127.0.0.1:{engine.port}{CHAT}", json=asked) as response:
        assert through == await response.read()


@pytest.mark.req("GW-12")
async def test_engine_that_reports_no_usage_is_estimated(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.usage = None
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        await response.read()
    (record,) = gateway.records()
    assert (record.prompt_tokens, record.completion_tokens, record.estimated) == (3, 3, True)


@pytest.mark.req("GW-12")
async def test_engine_that_says_zero_is_billed_zero(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        await response.read()
    (record,) = gateway.records()
    assert (record.prompt_tokens, record.completion_tokens, record.estimated) == (0, 0, False)


@pytest.mark.req("GW-12")
async def test_engine_that_rejects_the_option_is_asked_without_it(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.reject_usage_option = True
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        events = events_of(await response.read())
    assert events[-1] == "[DONE]"
    assert ["stream_options" in seen for seen in engine.seen] == [True, False]
    (record,) = gateway.records()
    assert (record.ending, record.estimated) == (Ending.COMPLETED, True)


@pytest.mark.req("GW-12")
async def test_record_is_there_before_the_last_bytes(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    """The caller that has [DONE] in its hands finds its record written already."""
    async with http.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
        got = b""
        while b"[DONE]" not in got:
            got += await response.content.readany()
        assert len(gateway.records()) == 1


@pytest.mark.req("GW-05")
async def test_engine_is_asked_for_its_own_model_name(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    engine.model, engine.key = "/models/on-disk.gguf", "k"
    replica = make_replica(engine, served_model_name="", engine_key="k")
    async with RunningGateway(FakeSource(make_table(make_route(replica))), tmp_path) as gateway:
        for _ in range(3):
            async with http.post(gateway.url + CHAT, json=BODY) as response:
                assert (await response.json())["model"] == MODEL
    assert [seen["model"] for seen in engine.seen] == ["/models/on-disk.gguf"] * 3
    assert engine.model_lists == 1


@pytest.mark.req("GW-05")
async def test_a_model_list_that_drips_is_read_to_its_end(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    engine.plan.chunk_bytes, engine.plan.gap_s = 20, 0.02
    source = FakeSource(make_table(make_route(make_replica(engine, served_model_name=""))))
    async with (
        RunningGateway(source, tmp_path) as gateway,
        http.post(gateway.url + CHAT, json=BODY) as response,
    ):
        assert response.status == 200, await response.text()
    assert [seen["model"] for seen in engine.seen] == ["engine-name"]


@pytest.mark.req("GW-05")
async def test_engines_name_is_asked_again_when_too_old(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    source = FakeSource(make_table(make_route(make_replica(engine, served_model_name=""))))
    async with RunningGateway(source, tmp_path, model_name_ttl_s=0.0) as gateway:
        for name in ("one", "two"):
            engine.model = name
            async with http.post(gateway.url + CHAT, json=BODY) as response:
                assert response.status == 200
    assert [seen["model"] for seen in engine.seen] == ["one", "two"]


@pytest.mark.req("GW-05")
async def test_a_call_that_the_engine_does_not_know_takes_its_name_from_no_other(
    engine: MockEngine, http: aiohttp.ClientSession, tmp_path
) -> None:
    """One caller's 404 has the name asked for anew; an engine that does not say it just then serves on."""
    source = FakeSource(make_table(make_route(make_replica(engine, served_model_name=""))))
    async with RunningGateway(source, tmp_path) as gateway:
        statuses = []
        for status, name in ((200, "one"), (404, "one"), (200, None), (404, None), (200, "two")):
            engine.plan.status, engine.model = status, name
            async with http.post(gateway.url + CHAT, json=BODY) as response:
                statuses.append(response.status)
    assert statuses == [200, 404, 200, 404, 200]
    assert [seen["model"] for seen in engine.seen] == ["one"] * 4 + ["two"]


@pytest.mark.req("GW-01")
async def test_models_lists_only_what_the_key_may_call(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    async with http.get(gateway.url + "/v1/models") as response:
        listed = await response.json()
    assert listed["object"] == "list"
    assert [entry["id"] for entry in listed["data"]] == [MODEL]
    async with http.get(f"{gateway.url}/v1/models/{MODEL}") as response:
        assert (await response.json())["id"] == MODEL
    async with http.get(f"{gateway.url}/v1/models/other%2Fname") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
    assert gateway.records() == []


@pytest.mark.req("GW-15")
async def test_two_hundred_streams_at_once(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    engine.plan.gap_s = 0.05
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as many:

        async def one() -> bytes:
            async with many.post(gateway.url + CHAT, json={**BODY, "stream": True}) as response:
                assert response.status == 200
                return await response.read()

        bodies = await asyncio.gather(*(one() for _ in range(200)))
    assert all(body.endswith(b"data: [DONE]\n\n") and body.count(b"data:") == 5 for body in bodies)
    assert {record.ending for record in gateway.records()} == {Ending.COMPLETED}
    assert len({record.request_id for record in gateway.records()}) == 200
    await until(lambda: gateway.app.in_flight() == {})


@pytest.mark.req("GW-01")
async def test_a_large_body_passes_whole(
    gateway: RunningGateway, engine: MockEngine, http: aiohttp.ClientSession
) -> None:
    text = "x" * 3_000_000
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": text}]})
    async with http.post(gateway.url + CHAT, data=body) as response:
        assert response.status == 200
    assert engine.seen[0]["messages"][0]["content"] == text
