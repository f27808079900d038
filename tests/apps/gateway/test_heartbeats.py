"""Comments to the caller of a stream while its engine is silent (GW-09)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from apps.gateway.plane.io.waiting import HEARTBEAT
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

pytestmark = [pytest.mark.usefixtures("each_shell"), pytest.mark.req("GW-09")]
CHAT = "/v1/chat/completions"
STREAM = {**BODY, "stream": True}
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
BEAT_S = 0.05


def event(text: str, end: bytes = b"\n\n") -> bytes:
    told = {"model": "engine-name", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(told).encode() + end


class Puppet:
    """An engine that says of its one answer what the test says, when it says it."""

    async def __aenter__(self) -> "Puppet":
        self.asked, self.left = asyncio.Event(), asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self._writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked.set()
            while await reader.read(65536):
                pass
        self.left.set()

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    def chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self._writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def puppet_behind(folder: Path, **settings: Any) -> AsyncIterator[tuple[Puppet, RunningGateway]]:
    wheel = {"heartbeat_s": BEAT_S, "deadline_step_s": 0.01, "probe_period_s": 0.0, **settings}
    async with Puppet() as engine:
        source = FakeSource(make_table(make_route(make_replica(engine.port))))
        async with RunningGateway(source, folder, **wheel) as gateway:
            yield engine, gateway


class Reader:
    """Reads a stream as it comes, and waits for what is in it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response, self.got = response, b""

    async def until(self, what: bytes, count: int = 1) -> None:
        async with asyncio.timeout(30):
            while self.got.count(what) < count:
                piece = await self.response.content.readany()
                assert piece, f"ended without {what!r}: {self.got!r}"
                self.got += piece


async def test_while_an_engine_prefills_and_in_gaps(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with puppet_behind(tmp_path) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        await asyncio.sleep(6 * BEAT_S)  # nothing may be said yet: the status is the engine's to say
        assert not asking.done()
        engine.say(SSE)
        async with await asking as response:
            assert response.content_type == "text/event-stream"
            reader = Reader(response)
            await reader.until(HEARTBEAT, 3)
            assert reader.got.replace(HEARTBEAT, b"") == b"", "before the first event nothing else goes out"
            engine.chunk(event("a") + event("b")[:20])
            await reader.until(b'"a"')
            before = reader.got.count(HEARTBEAT)
            await reader.until(HEARTBEAT, before + 2)
            assert reader.got.endswith(b"\n\n" + HEARTBEAT), "no half event went out before them"
            engine.chunk(event("b")[20:] + DONE)
            engine.end()
            reader.got += await response.read()
        said = reader.got.replace(HEARTBEAT, b"")
        assert [e["choices"][0]["delta"]["content"] for e in events_of(said)[:-1]] == ["a", "b"]
        assert reader.got.endswith(DONE)
        (record,) = gateway.records()
        assert (record.ending, record.completion_tokens) == (Ending.COMPLETED, 2)
        assert record.ttft_ms >= 6 * BEAT_S * 1000, "a heartbeat is no first byte"


async def test_no_deadline_is_moved_by_them(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with puppet_behind(tmp_path, first_byte_timeout_s=1.0) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        engine.say(SSE)
        async with await asking as response:
            got = await response.read()
        beats = got.count(HEARTBEAT)
        assert 1 <= beats <= 20
        (told,) = events_of(got.replace(HEARTBEAT, b""))
        assert (told["error"]["code"], response.status) == ("upstream_timeout", 200)
        assert "first event did not come within 1 seconds" in told["error"]["message"]
        (record,) = gateway.records()
        assert (record.ending, record.completion_tokens, record.ttft_ms) == (Ending.UPSTREAM_ERROR, 0, None)
        await engine.left.wait()


async def test_the_whole_calls_deadline_holds_too(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with puppet_behind(tmp_path, total_timeout_s=1.0) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        engine.say(SSE)
        engine.chunk(event("a"))
        async with await asking as response:
            got = await response.read()
        assert HEARTBEAT in got
        assert (
            "end did not come within 1 seconds"
            in events_of(got.replace(HEARTBEAT, b""))[-1]["error"]["message"]
        )
        assert gateway.records()[0].completion_tokens == 1


@pytest.mark.parametrize("last", [event("a", b"\r\n\r"), b"id: 7\n" + event("a"), event("a")[:30]])
async def test_where_a_comment_could_be_read_otherwise_there_is_none(
    tmp_path: Path, http: aiohttp.ClientSession, last: bytes
) -> None:
    """Half a line end, an event with an id; of half an event nothing went out, so there it may be."""
    rest_of = {event("a", b"\r\n\r"): b"\n", event("a")[:30]: event("a")[30:]}
    async with puppet_behind(tmp_path) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        engine.say(SSE)
        engine.chunk(event("first") + last)
        async with await asking as response:
            reader = Reader(response)
            await reader.until(b'"first"')
            await asyncio.sleep(5 * BEAT_S)
            if last in rest_of:
                engine.chunk(rest_of[last])
            engine.chunk(DONE)
            engine.end()
            reader.got += await response.read()
        whole = last == event("a")[:30]
        middle = reader.got.split(b'"first"')[1].split(b'"a"')
        assert (HEARTBEAT in middle[0]) is whole
        assert HEARTBEAT not in middle[1].partition(DONE)[0].replace(b"\r\n\r\n", b"")


@pytest.mark.parametrize("settings", [{"heartbeat_s": 0.0}, {"heartbeat_s": 60.0}])
async def test_none_where_they_are_off_or_far_between(
    tmp_path: Path, http: aiohttp.ClientSession, settings: dict[str, float]
) -> None:
    async with puppet_behind(tmp_path, gap_timeout_s=0.3, **settings) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        engine.say(SSE)
        engine.chunk(event("a"))
        async with await asking as response:
            got = await response.read()
        assert b": " + b"heartbeat" not in got
        assert events_of(got)[-1]["error"]["code"] == "upstream_timeout"


@pytest.mark.parametrize("asked", [BODY, STREAM])
async def test_an_answer_that_is_no_stream_stays_as_it_is(
    tmp_path: Path, http: aiohttp.ClientSession, asked: dict[str, Any]
) -> None:
    answer = b'{"choices": [], "usage": null}'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer)
    async with puppet_behind(tmp_path) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=asked))
        await engine.asked.wait()
        engine.say(head + answer[:5])
        await asyncio.sleep(5 * BEAT_S)
        engine.say(answer[5:])
        async with await asking as response:
            assert (response.status, await response.read()) == (200, answer)


async def test_they_end_with_the_caller(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with puppet_behind(tmp_path) as (engine, gateway):
        asking = asyncio.create_task(http.post(gateway.url + CHAT, json=STREAM))
        await engine.asked.wait()
        engine.say(SSE)
        async with await asking as response:
            await Reader(response).until(HEARTBEAT)
            response.close()
        await asyncio.wait_for(engine.left.wait(), 30)
        await until(lambda: gateway.app.in_flight() == {} and gateway.records())
        (record,) = gateway.records()
        assert (record.ending, record.ttft_ms) == (Ending.CLIENT_GONE, None)


async def test_openais_own_client_reads_over_them(tmp_path: Path) -> None:
    async with puppet_behind(tmp_path) as (engine, gateway):
        client = openai.AsyncOpenAI(api_key=SECRET, base_url=gateway.url + "/v1", max_retries=0)
        says = [{"role": "user", "content": "hi"}]
        asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=says, stream=True))
        await engine.asked.wait()
        engine.say(SSE)
        stream = await asking  # the head is there with the first heartbeat: no event was said yet
        texts = []

        async def read() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)

        reading = asyncio.create_task(read())
        for text in "abc":
            await asyncio.sleep(3 * BEAT_S)
            engine.chunk(event(text))
        await until(lambda: len(texts) == 3)
        engine.chunk(DONE)
        engine.end()
        await reading
        assert texts == ["a", "b", "c"]
        await client.close()
    assert gateway.records()[0].completion_tokens == 3
