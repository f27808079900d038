"""Big bodies that come slowly, or wait for an engine, take so much memory and no more (GW-01)."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway.plane.core.config import GatewayConfig
from apps.gateway.plane.core.errors import CallError
from apps.gateway.plane.core.request import estimate_prompt_tokens, parse_call
from apps.gateway.plane.io import bodies
from apps.gateway.plane.io.bodies import _parse_big_call
from apps.gateway.plane.io.room import Room
from apps.usage.record import Ending
from tests.fakes.gateway import (
    BODY,
    MODEL,
    SECRET,
    TENANT,
    FakeSource,
    RunningGateway,
    make_key,
    make_replica,
    make_route,
    make_table,
    until,
)
from tests.fakes.mock_engine import MockEngine, Plan

pytestmark = pytest.mark.req("GW-01")
CHAT = "/v1/chat/completions"
OTHER, THIRD = (f"sk-{digit * 8}-2222-3333-4444-555555555555" for digit in "23")
OTHERS, THIRDS = "ten-bbbbbbbbbbbbbbbb", "ten-cccccccccccccccc"
BIG = json.dumps({**BODY, "x": "y" * 40_000}).encode()
# Two of the big ones of one tenant, four of all.
LIMITS: dict[str, Any] = {
    "big_body_bytes": 10_000,
    "big_bodies_at_once": 4,
    "max_body_bytes": 50_000,
    "big_bodies_bytes": 4 * 50_000,
}


@pytest.fixture
async def narrow(engine: MockEngine, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    route = make_route(make_replica(engine))
    tenants = {SECRET: TENANT, OTHER: OTHERS, THIRD: THIRDS}
    table = make_table(route, keys={secret: make_key(tenant_id=tenant) for secret, tenant in tenants.items()})
    table.routes.update({tenant: {MODEL: (route,)} for tenant in tenants.values()})
    async with RunningGateway(FakeSource(table), tmp_path / "usage", **LIMITS) as gateway:
        yield gateway


def held(gateway: RunningGateway) -> dict[str, int]:
    return dict(gateway.app._room.held)


@asynccontextmanager
async def uploading(
    gateway: RunningGateway, secret: str, *, chunked: bool = False, whole: bool = False
) -> AsyncIterator[None]:
    """A caller that has announced a big body and sent most of it, or the `whole`."""
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n".encode())
    before, sent = sum(held(gateway).values()), b"x" * 45_000
    framing = b"Transfer-Encoding: chunked\r\n\r\nc350\r\n" if chunked else b"Content-Length: 50000\r\n\r\n"
    writer.write((b"Content-Length: 45000\r\n\r\n" if whole else framing) + sent)
    await until(lambda: sum(held(gateway).values()) == before + len(sent))
    try:
        yield
    finally:
        writer.close()


async def post(gateway: RunningGateway, body: bytes, secret: str = SECRET, coding: str = "") -> str:
    """ "" where it is answered, else what the refusal says."""
    headers = {"Authorization": f"Bearer {secret}"} | ({"Content-Encoding": coding} if coding else {})
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(gateway.url + CHAT, data=body) as response,
    ):
        answer = json.loads(await response.read())
        if response.status == 200:
            return ""
        assert (response.status, answer["error"]["code"]) == (503, "too_many_large_requests")
        assert response.headers["Retry-After"]
        return str(answer["error"]["message"])


@pytest.mark.usefixtures("each_shell")
@pytest.mark.parametrize("chunked", [False, True])
async def test_what_comes_slowly_has_its_bound(narrow: RunningGateway, chunked: bool) -> None:
    small = json.dumps(BODY).encode()
    async with uploading(narrow, SECRET, chunked=chunked):
        assert await post(narrow, BIG) == ""
        async with uploading(narrow, SECRET, chunked=chunked):
            assert "of one tenant" in await post(narrow, BIG)
            assert narrow.records()[-1].ending is Ending.REFUSED
            assert await post(narrow, small) == ""  # an ordinary one takes none of it
            assert await post(narrow, gzip.compress(small), coding="gzip") == ""
            assert "of one tenant" in await post(narrow, gzip.compress(BIG), coding="gzip")  # unpacked
            assert await post(narrow, BIG, OTHER) == ""  # nor has the other tenant had its share
            async with (
                uploading(narrow, OTHER, chunked=chunked),
                uploading(narrow, OTHER, chunked=chunked),
            ):
                assert "of all callers" in await post(narrow, BIG, THIRD)
    await until(lambda: held(narrow) == {})
    assert await post(narrow, BIG) == ""
    assert held(narrow) == {}


@pytest.mark.usefixtures("each_shell")
async def test_what_is_announced_and_does_not_come_takes_none(narrow: RunningGateway) -> None:
    async with AsyncExitStack() as opened:
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", narrow.port)
            opened.callback(writer.close)
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n"
            writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 50000\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")  # now its body is waited for
        assert await post(narrow, BIG) == ""
        assert held(narrow) == {}


@pytest.mark.usefixtures("each_shell")
async def test_what_an_engine_answers_takes_no_more_room(narrow: RunningGateway, engine: MockEngine) -> None:
    engine.plan = Plan(hang_after=1)
    body = json.dumps({**BODY, "x": "y" * 40_000, "stream": True}).encode()
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        answers = [await http.post(narrow.url + CHAT, data=body) for _ in range(4)]
        assert [answer.status for answer in answers] == [200] * 4
        assert engine.running == 4 and held(narrow) == {}
        engine.plan = Plan(delay_s=3600)
        waiting = [asyncio.create_task(http.post(narrow.url + CHAT, data=body)) for _ in range(2)]
        await until(lambda: engine.running == 6)
        assert held(narrow) == {TENANT: 2 * len(body)}
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        await until(lambda: held(narrow) == {})
        for answer in answers:
            answer.close()


async def test_a_chunked_body_takes_what_it_turned_out_to_be(
    narrow: RunningGateway, engine: MockEngine
) -> None:
    engine.plan = Plan(delay_s=3600)

    async def parts(body: bytes) -> AsyncIterator[bytes]:
        yield body

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {SECRET}"}) as http:
        bodies = ((json.dumps(BODY).encode(), {}), (BIG, {TENANT: len(BIG)}))
        for number, (body, expected) in enumerate(bodies, start=1):
            call = asyncio.create_task(http.post(narrow.url + CHAT, data=parts(body)))
            await until(lambda number=number: len(engine.seen) == number)
            assert held(narrow) == expected
            call.cancel()
            await asyncio.wait([call])


@pytest.mark.req("GW-02")
def test_the_refusal_says_how_much_there_is() -> None:
    with pytest.raises(CallError) as refused:
        Room(GatewayConfig(**LIMITS)).of(TENANT).resize(100_001)
    assert "100001 bytes" in refused.value.message and "100000 bytes at once" in refused.value.message


def test_one_body_always_has_room() -> None:
    config = GatewayConfig(max_body_bytes=1000, big_bodies_bytes=10)
    with Room(config).of(TENANT) as kept:
        kept.resize(1000)


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), max_size=40)


@given(changes=CHANGES)
def test_never_more_than_there_is_and_nothing_stays(changes: list[tuple[int, int]]) -> None:
    """Six calls of three tenants whose bodies grow and shrink."""
    room = Room(GatewayConfig(max_body_bytes=10, big_bodies_bytes=100))
    calls = [room.of(f"ten-{number % 3}") for number in range(6)]
    for number, size in changes:
        before = calls[number].size
        try:
            calls[number].resize(size)
        except CallError:
            assert calls[number].size == before < size
        assert room.held.total() == sum(call.size for call in calls) <= 100
        assert all(0 < size <= 50 for size in room.held.values())
    for call in calls:
        call.__exit__()
    assert room.held == {}


async def test_who_leaves_while_it_is_parsed_keeps_the_room_until_the_end(
    narrow: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread goes on with the body, whoever waits for it."""
    parsed, running = threading.Event(), threading.Event()

    def parse(*given: Any) -> Any:
        running.set()
        parsed.wait(60)
        return _parse_big_call(*given)

    monkeypatch.setattr(bodies, "_parse_big_call", parse)
    try:
        async with uploading(narrow, SECRET, whole=True):
            await until(running.is_set)
        await until(lambda: not narrow.listener._callers)
        assert held(narrow) == {TENANT: 45_000}
        assert narrow.app._parts.big_bodies._value == LIMITS["big_bodies_at_once"] - 1
    finally:
        parsed.set()
    await until(lambda: held(narrow) == {})
    assert narrow.app._parts.big_bodies._value == LIMITS["big_bodies_at_once"]


async def test_what_an_engine_that_answers_has_not_read_keeps_its_room(tmp_path: Path) -> None:
    """It waits in the engine's connection for as long as the stream goes on."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"c\r\ndata: {}\n\nxx\r\n")
        await reader.read()
        writer.close()

    body = json.dumps({**BODY, "x": "y" * 16_000_000, "stream": True}).encode()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    source = FakeSource(make_table(make_route(make_replica(server.sockets[0].getsockname()[1]))))
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with (
        server,
        RunningGateway(source, tmp_path / "usage") as gateway,
        aiohttp.ClientSession(headers=headers) as http,
    ):
        async with http.post(gateway.url + CHAT, data=body) as response:
            await response.content.readany()
            (call,) = gateway.app._running()
            assert 1_000_000 < call._response.unsent <= held(gateway)[TENANT]
        await until(lambda: held(gateway) == {})


async def test_what_comes_too_slowly_is_let_go(source: FakeSource, tmp_path: Path) -> None:
    async with RunningGateway(source, tmp_path / "usage", body_timeout_s=0.2, **LIMITS) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\n".encode())
        writer.write(b"Content-Length: 50000\r\n\r\n" + b"x" * 45_000)
        assert b"408" in await reader.readline()
        (caller,) = gateway.listener._callers
        assert (held(gateway), caller._reading.seen()) == ({}, b"")
        writer.close()


MANY = json.dumps({f"f{number}": 0 for number in range(1_001)} | BODY).encode()
MORE = json.dumps({f"f{number}": 0 for number in range(10_001)} | BODY).encode()
BIASED = json.dumps({**BODY, "logit_bias": dict.fromkeys(map(str, range(150_000)), -100)}).encode()
TOLD = json.dumps({**BODY, "messages": [{"role": "user", "content": "a: b, " * 20_000}]}).encode()


@pytest.mark.parametrize("body", [TOLD, BIASED], ids=["colons in what is said", "a bias of each token"])
def test_many_names_in_what_may_be_long_are_taken(body: bytes) -> None:
    assert parse_call(CHAT, body).model == MODEL


@pytest.mark.parametrize(("body", "said"), [(MANY, "1003 fields"), (MORE, "10000 names")])
def test_a_call_of_very_many_fields_is_refused_before_they_are_made(body: bytes, said: str) -> None:
    with pytest.raises(CallError) as refused:
        parse_call(CHAT, body)
    assert refused.value.status == 400 and said in refused.value.message


def test_a_prompt_of_very_many_values_counts_as_text() -> None:
    nested = b'{"model":"m","messages":[' + b",".join([b"[]"] * 100_000) + b"]}"
    assert estimate_prompt_tokens(parse_call(CHAT, nested)) == (3 * 100_000 + 1 + 3) // 4
    ids = json.dumps({"model": "m", "input": [7] * 90_000}).encode()
    assert estimate_prompt_tokens(parse_call("/v1/embeddings", ids)) == 90_000
