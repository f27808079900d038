"""Who and what is refused, in which words, and with which record (GW-02)."""

import asyncio
import json
import logging
from dataclasses import replace

import aiohttp
import msgspec
import pytest

from apps.routing.table import Key, Table
from apps.usage.record import Ending
from tests.fakes.gateway import (
    BODY,
    MODEL,
    SECRET,
    FakeSource,
    RunningGateway,
    make_key,
    make_replica,
    make_route,
    make_table,
    sha,
    until,
)
from tests.fakes.mock_engine import MockEngine

pytestmark = pytest.mark.usefixtures("each_shell")
CHAT = "/v1/chat/completions"
OTHER = "sk-99999999-2222-3333-4444-555555555555"


async def post(gateway: RunningGateway, body: object = BODY, **headers: str) -> tuple[int, dict, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body)
    async with aiohttp.request("POST", gateway.url + CHAT, data=data, headers=headers) as response:
        return response.status, await response.json(), dict(response.headers)


@pytest.mark.req("GW-02", "TEN-06")
@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {SECRET}", f"Bearer {OTHER}", "Bearer a b"]
)
async def test_no_or_unknown_key_is_401(
    gateway: RunningGateway, engine: MockEngine, header: str | None
) -> None:
    status, answer, headers = await post(gateway, **({} if header is None else {"Authorization": header}))
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert answer["error"]["type"] == "invalid_request_error"
    assert headers["WWW-Authenticate"] == "Bearer"
    assert OTHER not in json.dumps(answer)
    assert gateway.records() == []
    assert engine.seen == []


@pytest.mark.req("GW-02", "TEN-06")
async def test_expiry_is_judged_by_the_call(source: FakeSource, tmp_path) -> None:
    for expires_at, expected in ((1.0, 401), (4102444800.0, 200)):
        source.table = replace_keys(source, make_key(expires_at=expires_at))
        async with RunningGateway(source, tmp_path / str(expected)) as gateway:
            status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
            assert status == expected


def replace_keys(source: FakeSource, key: Key) -> Table:
    return msgspec.structs.replace(source.table, keys={sha(SECRET): key})


@pytest.mark.req("TEN-01", "GW-02")
async def test_suspended_tenant_is_403_with_the_reason(
    source: FakeSource, engine: MockEngine, tmp_path
) -> None:
    source.table = replace_keys(source, make_key(suspended="unpaid since May"))
    async with RunningGateway(source, tmp_path) as gateway:
        status, answer, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert (status, answer["error"]["code"]) == (403, "tenant_suspended")
        assert "unpaid since May" in answer["error"]["message"]
        (record,) = gateway.records()
        assert (record.ending, record.http_status) == (Ending.REFUSED, 403)
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with aiohttp.request("GET", gateway.url + "/v1/models", headers=headers) as response:
            assert response.status == 403
    assert engine.seen == []


@pytest.mark.req("GW-02")
async def test_unknown_and_forbidden_models_answer_alike(source: FakeSource, tmp_path) -> None:
    source.table = replace_keys(source, make_key(allowed_models=frozenset({"else"})))
    async with RunningGateway(source, tmp_path) as gateway:
        texts = []
        for model in (MODEL, "no-such-model"):
            status, answer, _ = await post(
                gateway, {**BODY, "model": model}, Authorization=f"Bearer {SECRET}"
            )
            error = answer["error"]
            assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert error["type"] == "invalid_request_error"
            texts.append(error["message"].replace(model, "*"))
        assert texts[0] == texts[1]
        assert [record.http_status for record in gateway.records()] == [404, 404]


@pytest.mark.req("GW-02", "GW-12")
@pytest.mark.parametrize("routes", [(), (make_route(),)])
async def test_known_model_without_backend_is_503(tmp_path, routes: tuple) -> None:
    async with RunningGateway(FakeSource(make_table(*routes)), tmp_path) as gateway:
        status, answer, headers = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "no_backend", "2")
        (record,) = gateway.records()
        assert (record.ending, record.http_status, record.prompt_tokens) == (Ending.NO_BACKEND, 503, 0)


@pytest.mark.req("GW-02", "GW-12")
async def test_of_a_sleeper_no_time_is_told_but_who_can_wake_it(tmp_path) -> None:
    asleep, starting = make_route(asleep=True), make_route(route_id="mr-b")
    source = FakeSource(make_table(asleep))
    async with RunningGateway(source, tmp_path) as gateway:
        status, answer, headers = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert (status, answer["error"]["code"], "Retry-After" in headers) == (503, "no_backend", False)
        assert "asleep" in answer["error"]["message"] and "wake" in answer["error"]["message"]
        assert "again" not in answer["error"]["message"]
        source.table = make_table(asleep, starting)  # one of two comes by itself
        gateway.app._tables.current = source.table
        status, answer, headers = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "no_backend", "2")
        assert {record.ending for record in gateway.records()} == {Ending.NO_BACKEND}


@pytest.mark.req("GW-02")
@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"{bad", None, "invalid_json"),
        (b"[]", None, "invalid_json"),
        (b'{"model":"\xff"}', None, "invalid_json"),
        (b'{"a":' + b"[" * 100_000, None, "invalid_json"),
        ({"messages": []}, "model", "missing_required_parameter"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": " "}, "model", "missing_required_parameter"),
        ({"model": 5}, "model", "invalid_value"),
        ({"model": ["a"]}, "model", "invalid_value"),
        ({"model": "x" * 300}, "model", "invalid_value"),
        ({"model": MODEL, "stream": "yes"}, "stream", "invalid_value"),
        ({"model": MODEL, "stream": 1}, "stream", "invalid_value"),
        ({"model": MODEL, "stream": True, "stream_options": 3}, "stream_options", "invalid_value"),
        (
            {"model": MODEL, "stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "invalid_value",
        ),
    ],
)
async def test_bad_bodies_are_400_and_name_the_field(
    gateway: RunningGateway, engine: MockEngine, body: object, param: str | None, code: str
) -> None:
    status, answer, _ = await post(gateway, body, Authorization=f"Bearer {SECRET}")
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, param, code)
    assert engine.seen == []
    (record,) = gateway.records()
    assert (record.ending, record.http_status) == (Ending.REFUSED, 400)


@pytest.mark.req("GW-02")
async def test_twenty_megabytes_are_413(gateway: RunningGateway, engine: MockEngine) -> None:
    body = b'{"model":"' + b"x" * 20_000_000 + b'"}'
    status, answer, _ = await post(gateway, body, Authorization=f"Bearer {SECRET}")
    assert (status, answer["error"]["code"]) == (413, "request_too_large")
    assert "16777216" in answer["error"]["message"]
    status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
    assert status == 200
    assert [record.ending for record in gateway.records()] == [Ending.REFUSED, Ending.COMPLETED]


@pytest.mark.req("GW-02")
async def test_too_large_without_a_length_is_413(source: FakeSource, tmp_path) -> None:
    async def pieces():
        for _ in range(100):
            yield b"x" * 1000

    async with RunningGateway(source, tmp_path, max_body_bytes=50_000) as gateway:
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with aiohttp.request("POST", gateway.url + CHAT, data=pieces(), headers=headers) as response:
            assert response.status == 413


@pytest.mark.req("GW-02")
async def test_slow_body_ends(source: FakeSource, tmp_path) -> None:
    async with RunningGateway(source, tmp_path, body_timeout_s=0.2) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 90\r\n\r\n"
        )
        writer.write(head.encode())
        assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.req("GW-01")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", "/v1/embeddings", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/nope", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
    ],
)
async def test_unknown_paths_and_methods(
    gateway: RunningGateway, http: aiohttp.ClientSession, method: str, path: str, status: int, code: str
) -> None:
    async with http.request(method, gateway.url + path) as response:
        assert response.status == status
        assert (await response.json())["error"]["code"] == code
        assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.req("TEN-06")
async def test_keys_never_reach_log_or_answer(
    source: FakeSource, engine: MockEngine, tmp_path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source.table = make_table(make_route(make_replica(engine, engine_key="engine-secret")))
    answers = []
    async with RunningGateway(source, tmp_path) as gateway:
        for change in ({}, {"status": 400}, {"status": 500}, {"reset_before_answer": 9}, {"abort_after": 1}):
            engine.plan = replace(engine.plan, **change)
            for secret in (SECRET, OTHER):
                for body in (BODY, {**BODY, "stream": True}, {"model": secret}):
                    headers = {"Authorization": f"Bearer {secret}", "X-Request-ID": "of-the-caller"}
                    url = gateway.url + CHAT
                    async with aiohttp.request("POST", url, json=body, headers=headers) as response:
                        answers.append(str(response.headers))
        source.broken = True
        await post(gateway, Authorization="Bearer sk-another-one")
        written = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    ours = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("heteroflow"))
    assert "ended upstream_error" in ours
    for secret in (OTHER, "engine-secret", "sk-another-one", "hello there"):
        assert secret not in ours + written + "".join(answers)
    assert SECRET not in ours + "".join(answers)


@pytest.mark.req("TEN-06")
async def test_last_use_of_keys_is_told(source: FakeSource, tmp_path) -> None:
    settings = {"touch_interval_s": 0.05, "usage_retry_s": 0.02}
    async with RunningGateway(source, tmp_path, **settings) as gateway:
        await post(gateway, Authorization=f"Bearer {SECRET}")
        await until(lambda: "key-aaaaaaaaaaaaaaaa" in gateway.touched)


# ---- tables and keys that come from the database ----


@pytest.mark.req("GW-02")
async def test_new_key_works_before_the_next_poll(source: FakeSource, tmp_path) -> None:
    async with RunningGateway(source, tmp_path, version_poll_s=60.0) as gateway:
        source.late_keys[OTHER] = make_key(key_id="key-bbbbbbbbbbbbbbbb")
        status, _, _ = await post(gateway, Authorization=f"Bearer {OTHER}")
        assert status == 200


@pytest.mark.req("GW-02")
async def test_database_away_known_goes_on_unknown_is_503(source: FakeSource, tmp_path) -> None:
    async with RunningGateway(source, tmp_path, version_poll_s=0.02) as gateway:
        source.broken = True
        status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert status == 200
        status, answer, headers = await post(gateway, Authorization=f"Bearer {OTHER}")
        assert (status, answer["error"]["code"]) == (503, "key_check_unavailable")
        assert "Retry-After" in headers
        source.broken = False
        status, _, _ = await post(gateway, Authorization=f"Bearer {OTHER}")
        assert status == 401


@pytest.mark.req("GW-02")
async def test_gateway_starts_without_a_database(source: FakeSource, tmp_path) -> None:
    source.broken = True
    async with RunningGateway(source, tmp_path, version_poll_s=0.02) as gateway:
        status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert status == 503
        assert not gateway.app.ready()
        source.broken = False
        await until(gateway.app.ready)
        status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert status == 200


@pytest.mark.req("GW-02", "GW-03")
async def test_table_is_replaced_on_a_new_version(source: FakeSource, engine: MockEngine, tmp_path) -> None:
    async with RunningGateway(source, tmp_path, version_poll_s=0.02) as gateway:
        source.table = make_table(make_route(), keys={}, version=2)
        await until(lambda: source.loads == 2)
        status, _, _ = await post(gateway, Authorization=f"Bearer {SECRET}")
        assert status == 401
        source.table = make_table(make_route(make_replica(engine)), version=3)
        await until(lambda: source.loads == 3)
    assert source.loads == 3


@pytest.mark.req("GW-02")
async def test_table_is_read_in_full_now_and_then(source: FakeSource, tmp_path) -> None:
    async with RunningGateway(source, tmp_path, version_poll_s=0.01, full_reload_s=0.05):
        await until(lambda: source.loads >= 3)


@pytest.mark.req("GW-02")
async def test_unknown_keys_ask_the_database_within_bounds(source: FakeSource, tmp_path) -> None:
    source.lookup_s = 0.05
    async with RunningGateway(source, tmp_path) as gateway:
        keys = [f"sk-guess-{number % 10}" for number in range(40)]
        answers = await asyncio.gather(*(post(gateway, Authorization=f"Bearer {key}") for key in keys))
    assert {status for status, _, _ in answers} == {401}
    assert source.lookups == 10
    assert source.most_at_once <= 4


@pytest.mark.req("TEN-06")
async def test_a_key_in_the_place_of_a_model_name_is_not_kept(gateway: RunningGateway) -> None:
    own = {"Authorization": f"Bearer {SECRET}"}
    status, answer, _ = await post(gateway, {**BODY, "model": SECRET}, **own)
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert SECRET not in str(answer)
    (record,) = gateway.records()
    assert record.model.startswith(SECRET[:11]) and SECRET not in record.model
