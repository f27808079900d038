"""The door over real TLS and real sockets: who gets through, what passes, how it ends (AGENT-16)."""

import asyncio
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import psutil
import pytest

from agent.config import ConfigError
from agent.contract.door import LONGEST_LINE, NO, OK, check_pong, derive_key
from agent.contract.messages import DesiredTask, SleepOrder
from agent.contract.states import Desired
from agent.door.certificate import load_certificate
from agent.door.listener import OUTCOMES
from agent.door.opening import advertised_host, open_door
from agent.door.targets import find_in
from agent.supervisor.health import Work
from tests.agent.fakes import World, make_settings
from tests.fakes.door import KEY, SECRET_SHA256, RunningDoor, knock, line_for, ping_for
from tests.steady import steady_clock_of_the_loop

pytestmark = pytest.mark.req("AGENT-16")
MB = 1024 * 1024
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Engine:
    """A TCP server that does with each connection what the test says."""

    def __init__(self) -> None:
        self.talk: Talk = self.echo
        self.connections = 0
        self.ended: list[float] = []
        self.sent = 0

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()

    async def pour(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int) -> None:
        await reader.read(1)
        while self.sent < size:
            writer.write(bytes(2**16))
            await writer.drain()
            self.sent += 2**16

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.talk(reader, writer)
        except ConnectionError:
            pass
        finally:
            self.ended.append(time.monotonic())
            writer.close()


async def until(true: Callable[[], object], what: str, limit_s: float = 10.0) -> None:
    give_up_at = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < give_up_at, f"{what}: not within {limit_s} s"
        await asyncio.sleep(0.01)


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
async def engine_port(engine: Engine) -> AsyncIterator[int]:
    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def door(engine_port: int, tmp_path: Path) -> AsyncIterator[RunningDoor]:
    async with RunningDoor(tmp_path, {("task-a", 1): engine_port}, line_s=1.0, connect_s=1.0) as running:
        yield running


async def hear(reader: asyncio.StreamReader) -> bytes:
    """Everything until the end of the connection."""
    try:
        return await asyncio.wait_for(reader.read(-1), 60)
    except ConnectionError:
        return b"(reset)"


# --- what passes ----------------------------------------------------------------------------------


async def test_bytes_pass_both_ways_as_they_are(door: RunningDoor) -> None:
    reader, writer = await knock(door.port, line_for())
    assert await reader.readline() == OK
    sent = os.urandom(3 * MB)

    async def send() -> None:
        for begin in range(0, len(sent), 100_000):
            writer.write(sent[begin : begin + 100_000])
            await writer.drain()

    sending = asyncio.ensure_future(send())
    assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
    await sending
    writer.close()
    assert door.door.counts == {"open": 1}


async def test_what_follows_the_line_at_once_is_not_lost(door: RunningDoor) -> None:
    reader, writer = await knock(door.port, line_for() + b"x" * 200_000)
    assert await reader.readline() == OK
    assert await asyncio.wait_for(reader.readexactly(200_000), 10) == b"x" * 200_000
    writer.close()


async def test_the_line_may_come_byte_by_byte(door: RunningDoor) -> None:
    reader, writer = await knock(door.port)
    for byte in line_for():
        writer.write(bytes([byte]))
        await writer.drain()
    assert await reader.readline() == OK
    writer.close()


async def test_an_idle_connection_outlives_every_deadline_of_the_door(door: RunningDoor) -> None:
    reader, writer = await knock(door.port, line_for())
    assert await reader.readline() == OK
    await asyncio.sleep(1.5)  # the time itself is what is tested: more than line_s and connect_s
    writer.write(b"still there")
    assert await asyncio.wait_for(reader.readexactly(11), 5) == b"still there"
    writer.close()


async def test_a_ping_is_answered_with_a_proof(door: RunningDoor) -> None:
    nonce = "0123456789abcdef" * 2
    reader, _ = await knock(door.port, ping_for(nonce))
    assert check_pong(KEY, await hear(reader), nonce)
    assert door.door.counts == {"ping": 1}


@pytest.mark.req("AGENT-16")
@pytest.mark.parametrize("off_s", [-600.0, 600.0])
async def test_a_line_by_the_nodes_own_clock_opens_once_whatever_that_clock_says(
    door: RunningDoor, off_s: float
) -> None:
    door.door._wall = lambda: time.time() + off_s
    line = line_for(now_s=time.time() + off_s)
    reader, writer = await knock(door.port, line)
    assert await reader.readline() == OK
    writer.close()
    for again in (line, line_for()):  # a repeat, and one by the true time
        reader, _ = await knock(door.port, again)
        assert await hear(reader) == NO
    assert door.door.counts == {"open": 1, "replay": 1, "skew": 1}


# --- how it ends ----------------------------------------------------------------------------------


async def test_a_caller_that_leaves_ends_the_engines_connection_within_a_second(
    door: RunningDoor, engine: Engine
) -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"data: x\n\n")
            await writer.drain()
            await asyncio.sleep(0.05)

    engine.talk = drip
    reader, writer = await knock(door.port, line_for())
    assert await reader.readline() == OK
    await reader.readline()
    left_at = time.monotonic()
    writer.transport.abort()
    await until(lambda: engine.ended, "the engine noticed")
    assert engine.ended[0] - left_at < 1.0


async def test_a_caller_that_leaves_a_silent_engine_is_noticed_as_well(
    door: RunningDoor, engine: Engine
) -> None:
    reader, writer = await knock(door.port, line_for())
    assert await reader.readline() == OK
    await until(lambda: engine.connections, "connected")
    left_at = time.monotonic()
    writer.close()
    await until(lambda: engine.ended, "the engine noticed")
    assert engine.ended[0] - left_at < 1.0


async def test_all_that_an_engine_said_arrives_although_it_hung_up(door: RunningDoor, engine: Engine) -> None:
    engine.talk = lambda reader, writer: engine.pour(reader, writer, 5 * MB)
    reader, writer = await knock(door.port, line_for() + b"go")
    assert await reader.readline() == OK
    got = 0
    while piece := await asyncio.wait_for(reader.read(50_000), 10):
        got += len(piece)
        await asyncio.sleep(0.002)
    assert got == 5 * MB
    writer.close()


async def test_an_engine_that_only_ends_its_own_side_ends_the_call(door: RunningDoor, engine: Engine) -> None:
    gone = asyncio.Event()

    async def half_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"all of it")
        writer.write_eof()
        assert await reader.read() == b""
        gone.set()

    engine.talk = half_close
    reader, writer = await knock(door.port, line_for())
    assert await hear(reader) == OK + b"all of it"
    writer.close()
    await asyncio.wait_for(gone.wait(), 2)


@pytest.mark.slow
async def test_a_slow_reader_holds_the_engine_back_and_not_in_memory(
    engine: Engine, engine_port: int, tmp_path: Path
) -> None:
    size = 20 * MB
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.door", str(engine_port), str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        port = int(await asyncio.wait_for(process.stdout.readline(), 20))
        engine.talk = lambda reader, writer: engine.pour(reader, writer, size)
        reader, writer = await knock(port, line_for())
        assert await reader.readline() == OK
        memory = psutil.Process(process.pid)
        before, most = memory.memory_info().rss, 0
        writer.write(b"!")
        got = 0
        while got < size:
            got += len(await asyncio.wait_for(reader.read(2**16), 10))
            most = max(most, memory.memory_info().rss)
            await asyncio.sleep(0.005)
            # Kernel buffers hold up to some MB; an unbounded door would have had all of it by now.
        assert most - before < 5 * MB
        assert got == size
        writer.close()
    finally:
        process.kill()
        await process.wait()


# --- who gets through -----------------------------------------------------------------------------


async def test_everything_else_gets_one_and_the_same_line(door: RunningDoor, engine: Engine) -> None:
    good = line_for()
    wrong = {
        "mac": line_for(key=derive_key("cd" * 32)),
        "skew": line_for(now_s=time.time() - 120),
        "malformed": b"GET / HTTP/1.1\r\n",
        "no_engine": line_for(attempt=2),
    }
    for why, line in wrong.items():
        reader, writer = await knock(door.port, line)
        assert await hear(reader) == NO, why
        assert door.door.counts[why] == 1
        writer.close()
    reader, writer = await knock(door.port, good)
    assert await reader.readline() == OK
    again, _ = await knock(door.port, good)
    assert await hear(again) == NO
    assert door.door.counts["replay"] == 1
    assert engine.connections == 1
    writer.close()


async def test_a_line_without_end_is_refused_at_its_limit(door: RunningDoor) -> None:
    reader, _ = await knock(door.port, b"x" * LONGEST_LINE)
    assert await hear(reader) == NO
    assert door.door.counts["malformed"] == 1


async def test_silence_and_plain_text_end_at_the_deadline(door: RunningDoor) -> None:
    async with steady_clock_of_the_loop() as clock:
        silent, _ = await knock(door.port)
        plain, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(line_for())  # without TLS
        assert await hear(silent) == NO
        assert NO not in await hear(plain)
        assert clock.now() < 5
    assert door.door.counts["late"] == 1


async def test_an_engine_that_does_not_listen_is_a_refusal(door: RunningDoor) -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    door.ports["task-b", 1] = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    reader, _ = await knock(door.port, line_for("task-b"))
    assert await hear(reader) == NO


async def test_connections_are_bounded_and_strangers_keep_nobody_out(
    engine_port: int, tmp_path: Path
) -> None:
    limits = {"connections": 2, "unproved": 3, "line_s": 5.0}
    async with RunningDoor(tmp_path, {("task-a", 1): engine_port}, **limits) as door:
        strangers = [await asyncio.open_connection("127.0.0.1", door.port) for _ in range(10)]
        first = [await knock(door.port, line_for()) for _ in range(2)]
        for reader, _ in first:
            assert await asyncio.wait_for(reader.readline(), 60) == OK
        third, _ = await knock(door.port, line_for())
        assert await hear(third) == NO
        assert door.door.counts["full"] == 1
        assert door.door.counts["crowded"] >= 7  # strangers that made room
        assert set(door.door.counts) <= set(OUTCOMES)
        first[0][1].close()
        await until(lambda: len(door.door._proved) < 2, "one has left")
        fourth, last = await knock(door.port, line_for())
        assert await fourth.readline() == OK
        for writer in (last, first[1][1], *(writer for _, writer in strangers)):
            writer.close()


async def test_only_attempts_that_run_now_have_a_port(tmp_path: Path) -> None:
    world = World(tmp_path)
    find = find_in(world.supervisor.attempts)
    assert find("task-a", 1) is None
    await world.run_to_ready()
    assert find("task-a", 1) == 20001
    assert find("task-a", 2) is None and find("task-b", 1) is None
    world.runtime.obeys = False
    world.list(world.want(2))  # a newer attempt: the older one is being stopped
    await world.go(1)
    assert find("task-a", 1) is None
    assert find("task-a", 2) is None


async def test_one_that_is_to_sleep_takes_calls_until_it_is_quiet_and_one_that_woke_shows_a_token_first(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.runtime.outlives_agent = True
    find = find_in(world.supervisor.attempts)
    await world.run_to_ready()
    world.work_answer = Work(steps=0, running=1, waiting=0)
    world.list(DesiredTask("task-a", 1, Desired.STOP, 10, SleepOrder(drain_seconds=60, settle_seconds=1)))
    await world.go(5, steps=5)
    assert find("task-a", 1) == 20001
    world.work_answer = Work(steps=0, running=0, waiting=0)
    await world.go(5, steps=10)
    assert find("task-a", 1) is None
    world.canary_answers = ["no"]
    world.list(world.want())
    await world.go(0.5)
    assert find("task-a", 1) is None
    await world.go(5, steps=10)
    assert find("task-a", 1) == 20001


# --- certificate and address ----------------------------------------------------------------------


def test_the_certificate_is_made_once_and_kept_for_this_user_only(tmp_path: Path) -> None:
    first = load_certificate(tmp_path)
    assert load_certificate(tmp_path).sha256 == first.sha256
    assert len(first.sha256) == 64
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_bytes(file.read_bytes()[:300])
    assert load_certificate(tmp_path).sha256 != first.sha256


async def test_a_port_that_is_taken_is_said_in_a_sentence(door: RunningDoor, tmp_path: Path) -> None:
    settings = make_settings(tmp_path, dial="door", door_host="127.0.0.1", door_port=door.port)
    with pytest.raises(ConfigError, match=f"door_port = {door.port}: cannot listen"):
        open_door(settings, tmp_path, SECRET_SHA256, lambda task_id, attempt: None)


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"door_advertise_host": "gpu-1.lan"}, "gpu-1.lan"),
        ({"door_host": "10.1.2.3"}, "10.1.2.3"),
        ({"door_host": "0.0.0.0"}, "127.0.0.1"),  # the server is on loopback
        ({"door_host": "::"}, "127.0.0.1"),
    ],
)
def test_the_address_given_to_the_server(tmp_path: Path, changes: dict[str, str], host: str) -> None:
    assert advertised_host(make_settings(tmp_path, dial="door", **changes)) == host
