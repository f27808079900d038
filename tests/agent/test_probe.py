"""What an engine answers is anybody's: it may be long, packed or without an end (AGENT-08, AGENT-15)."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from agent.contract.messages import HealthCheck
from agent.engines.catalog import ENGINES
from agent.supervisor import probe
from agent.supervisor.health import Outcome, Work
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


COMPLETION = {"choices": [{"text": "Hello"}], "usage": {"completion_tokens": 1}}
EMBEDDING = {"data": [{"embedding": [0.1, 0.2]}]}
NOT_FOUND = 404, {"detail": "Not Found"}


@asynccontextmanager
async def answering(answers: dict[str, tuple[int, object]]) -> AsyncIterator[tuple[int, list[web.Request]]]:
    """An engine that answers each path as given, and what it was asked."""
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        await request.read()
        status, body = answers.get(request.path, NOT_FOUND)
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


@pytest.mark.req("SLEEP-02")
@pytest.mark.parametrize(
    ("answers", "trouble"),
    [
        ({"/v1/completions": (200, COMPLETION)}, ""),
        ({"/v1/completions": NOT_FOUND, "/v1/embeddings": (200, EMBEDDING)}, ""),
        ({"/v1/completions": (501, {"error": 1}), "/v1/embeddings": (200, EMBEDDING)}, ""),
        ({"/v1/completions": (200, {**COMPLETION, "choices": []})}, "answers 200"),
        ({"/v1/completions": (200, {**COMPLETION, "usage": {"completion_tokens": 0}})}, "answers 200"),
        ({"/v1/completions": (200, {"choices": [{"text": "x"}]})}, "answers 200"),
        ({"/v1/completions": (200, "no JSON")}, "answers 200: no JSON"),
        ({"/v1/completions": (200, "[1]")}, "answers 200"),
        ({"/v1/completions": (500, "died"), "/v1/embeddings": (200, EMBEDDING)}, "answers 500: died"),
        ({"/v1/embeddings": (200, {"data": []})}, "answers 404"),
        ({"/v1/completions": (302, "")}, "answers 302"),
    ],
)
async def test_a_token_is_one_that_was_counted(answers: dict[str, tuple[int, object]], trouble: str) -> None:
    async with answering(answers) as (port, asked), prober() as one:
        told = await one.canary(target(port), 30)
    assert (told == "") is (trouble == "") and trouble in told
    assert asked[0].headers["Authorization"] == "Bearer key"


@pytest.mark.req("SLEEP-01", "AGENT-17")
async def test_the_sleep_call_goes_to_the_engine_with_its_key() -> None:
    async with (
        answering({"/sleep": (200, {"status": "sleeping", "level": 2})}) as (port, asked),
        prober() as one,
    ):
        assert await one.sleep(target(port), 2, 30) == ""
        assert (asked[0].method, asked[0].path_qs) == ("POST", "/sleep?level=2")
        assert asked[0].headers["Authorization"] == "Bearer key"
    async with answering({}) as (port, _), prober() as one:
        assert await one.sleep(target(port), 2, 30) == '/sleep answers 404: {"detail": "Not Found"}'
    async with prober() as one:
        assert (await one.sleep(target(port), 2, 30)).startswith("/sleep: ")


@pytest.mark.parametrize("kind", ["engine", "http"])
async def test_only_the_check_that_knows_its_engine_reads_its_loading_and_its_work(kind: str) -> None:
    llamacpp = ENGINES["llamacpp"]
    text = f"{llamacpp.metrics.progress_counter} 7\n{llamacpp.metrics.running_gauge} 1\n"
    for status, outcome in ((503, Outcome.LOADING), (200, Outcome.OK)):
        answers = {"/health": (status, ""), "/metrics": (200, text)}
        async with answering(answers) as (port, _), prober() as one:
            wanted = ProbeTarget("127.0.0.1", port, HealthCheck(type=kind), llamacpp, "key", api_port=port)
            seen = await one.probe(wanted)
        aware = kind == "engine"
        assert seen.outcome is (outcome if aware or status == 200 else Outcome.FAILED)
        assert seen.work == (Work(steps=7, running=1) if aware and status == 200 else None)
