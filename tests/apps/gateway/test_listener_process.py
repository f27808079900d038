"""A listener as a process: what callers that read nothing cost it, and how it ends (GW-09, GW-12)."""

import asyncio
import contextlib
import json
import signal
import socket
from pathlib import Path

import aiohttp
import psutil
import pytest

from apps.usage.record import Ending
from tests.fakes.gateway import BODY, SECRET, events_of, read_records, until
from tests.fakes.gateway_process import GatewayProcess, gateway_process
from tests.fakes.mock_engine import MockEngine
from tests.steady import steady_clock_of_the_loop

pytestmark = [pytest.mark.slow, pytest.mark.req("GW-09", "GW-12")]
CHAT = "/v1/chat/completions"
STREAM = {**BODY, "stream": True}
MB = 1_000_000
STREAMS, LONG = 10, 20 * MB
EVENT = b'data: {"model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 20_000)


def bytes_of_its_own(gateway: GatewayProcess) -> int:
    return int(psutil.Process(gateway.process.pid).memory_full_info().uss)


class LongStreams:
    """An engine whose every answer is a stream of 20 MB; `written`: bytes of all that it got rid of."""

    async def __aenter__(self) -> "LongStreams":
        self.written = self.begun = self.left = 0
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.begun += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for _ in range(LONG // len(EVENT)):
                writer.write(EVENT)
                await writer.drain()
                self.written += len(EVENT)
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        self.left += 1
        writer.close()


def ask_and_never_read(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", port))
    body = json.dumps(STREAM)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {len(body)}"
    sock.sendall(f"{head}\r\n\r\n{body}".encode())
    return sock


async def test_ten_callers_that_read_nothing_cost_little(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with LongStreams() as engine, gateway_process(engine.port, tmp_path) as listener:
        async with http.post(listener.url + CHAT, json=STREAM) as response:
            got = await response.read()
        assert len(got) > LONG * 0.99 and got.endswith(b"data: [DONE]\n\n")
        before = most = bytes_of_its_own(listener)
        engine.written = engine.left = 0
        callers = [ask_and_never_read(listener.port) for _ in range(STREAMS)]
        await until(lambda: engine.begun == 1 + STREAMS)
        written, still = -1, 0
        while still < 10:  # until the engine gets rid of nothing more
            still = still + 1 if engine.written == written else 0
            written = engine.written
            most = max(most, bytes_of_its_own(listener))
            await asyncio.sleep(0.05)
        assert engine.left == 0, "every stream waits for its caller"
        assert most - before < 16 * MB
        for caller in callers:
            caller.close()
        async with steady_clock_of_the_loop() as clock:
            await until(lambda: engine.left == STREAMS)
            assert clock.now() < 5.0, "they are told, long before they count as gone"
        await until(lambda: len(read_records(tmp_path)) == 1 + STREAMS)
        endings = sorted(record.ending for record in read_records(tmp_path))
        assert endings == sorted([Ending.COMPLETED, *[Ending.CLIENT_GONE] * STREAMS])


async def test_told_to_end_it_lets_streams_end_and_takes_no_more(
    engine: MockEngine, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    engine.plan.tokens, engine.plan.gap_s = 20, 0.05
    async with gateway_process(engine.port, tmp_path, shutdown_timeout_s=60) as listener:
        idle_reader, idle = await asyncio.open_connection("127.0.0.1", listener.port)
        async with http.post(listener.url + CHAT, json=STREAM) as response:
            got = await response.content.readany()
            listener.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(idle_reader.read(), 30) == b"", "an idle connection ends at once"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", listener.port)
            got += await response.read()
        idle.close()
        assert got.endswith(b"data: [DONE]\n\n") and len(events_of(got)) == 22
        assert await asyncio.wait_for(listener.process.wait(), 30) == 0
        assert [record.ending for record in read_records(tmp_path)] == [Ending.COMPLETED]


async def test_told_to_end_it_waits_for_streams_no_longer_than_it_may(
    engine: MockEngine, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    engine.plan.hang_after = 1
    async with gateway_process(engine.port, tmp_path, shutdown_timeout_s=0.3) as listener:
        async with http.post(listener.url + CHAT, json=STREAM) as response:
            got = await response.content.readany()
            listener.process.send_signal(signal.SIGTERM)
            got += await response.read()
        assert events_of(got)[-1]["error"]["code"] == "gateway_stopping"
        assert await asyncio.wait_for(listener.process.wait(), 30) == 0
        assert [record.ending for record in read_records(tmp_path)] == [Ending.UPSTREAM_ERROR]
        await until(lambda: engine.running == 0)
