"""The copies of engines' logs keep within their room, and what had to go is said in its place (AGENT-10)."""

import asyncio
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import ServerRefused, ServerUnreachable
from agent.link import logroom
from agent.link.logroom import LAST_BYTES, LogRoom
from agent.link.logship import LogShipper
from tests.agent.fakes import make_settings
from tests.agent.test_logs import NO_LIMIT, LogServer, make_room
from tests.examples import examples

pytestmark = pytest.mark.req("AGENT-10", "AGENT-14")
MB = 1024 * 1024
LINE = 100
GAP = re.compile(r"\[heteroflow: (\d+) bytes of this log are missing here \((at most )?(\d+) lines\)")


def write(file: Path, lines: range) -> None:
    with file.open("ab") as out:
        out.writelines(f"{number:0{LINE - 1}d}\n".encode() for number in lines)


def taken(file: Path) -> int:
    """What it takes of the disk, in bytes."""
    return file.stat().st_blocks * 512


def lines_of(server: LogServer) -> list[str]:
    return server.held.replace(b"\0", b"").decode().splitlines()


def shipper(file: Path, server: LogServer, room: LogRoom) -> LogShipper:
    ship = LogShipper(make_settings(file.parent), "inc", server.send, room)
    ship.follow("task-a", 1, file, [])
    return ship


async def ship_all(ship: LogShipper, server: LogServer) -> None:
    ship.finish("task-a", 1, final=False)
    before = -1
    while len(server.held) != before:
        before = len(server.held)
        await ship.round(0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder / "task-a.1.log"


async def test_a_flood_while_the_server_is_away_is_bounded_and_the_gap_is_a_record(file: Path) -> None:
    room, server = make_room(file.parent, each=MB), LogServer()
    for start in range(0, 100_000, 10_000):
        write(file, range(start, start + 10_000))
        room.tidy({})
        assert taken(file) <= MB
    assert file.stat().st_size == 100_000 * LINE  # an offset means what it meant
    await ship_all(shipper(file, server, room), server)
    first, *rest = lines_of(server)
    found = GAP.match(first)
    assert found and found[2] is None
    lost = int(found[3])
    assert rest == [f"{number:0{LINE - 1}d}" for number in range(lost, 100_000)]
    assert int(found[1]) == lost * LINE
    assert len(rest) * LINE >= MB * 3 // 4
    assert len(server.held) == 100_000 * LINE


async def test_what_the_server_has_goes_without_a_word(file: Path) -> None:
    room, server = make_room(file.parent, each=MB), LogServer()
    ship = shipper(file, server, room)
    for start in range(0, 60_000, 2_000):
        write(file, range(start, start + 2_000))
        await ship.round(0.0)
        room.tidy({file.name: len(server.held)})
    await ship_all(ship, server)
    assert server.gaps == []
    assert len(lines_of(server)) == 60_000
    assert taken(file) <= MB


async def test_after_a_kill_of_the_agent_the_gap_is_still_known(file: Path) -> None:
    server = LogServer()
    write(file, range(40_000))
    make_room(file.parent, each=MB).tidy({})
    await ship_all(shipper(file, server, make_room(file.parent, each=MB)), server)
    (record,) = server.gaps
    found = GAP.match(record)
    assert found and len(lines_of(server)) - 1 + int(found[3]) == 40_000
    again = shipper(file, server, make_room(file.parent, each=MB))  # it begins at 0, and is told better
    await ship_all(again, server)
    assert server.gaps == [record] and len(server.held) == 40_000 * LINE


async def test_a_server_that_lost_its_log_hears_that_the_lines_were_not_counted(file: Path) -> None:
    room, server = make_room(file.parent, each=MB), LogServer()
    write(file, range(40_000))
    ship = shipper(file, server, room)
    await ship_all(ship, server)
    room.tidy({file.name: len(server.held)})
    server.held = b""
    await ship_all(shipper(file, server, room), server)
    assert "how many lines is not known" in server.gaps[0]


async def test_of_many_logs_the_flood_gives_first_and_what_is_sent_before_what_is_not(tmp_path: Path) -> None:
    quiet, sent, flood = (tmp_path / f"task-{name}.1.log" for name in ("quiet", "sent", "flood"))
    write(quiet, range(3_000))
    write(sent, range(12_000))
    write(flood, range(40_000))
    room = make_room(tmp_path, together=4 * MB)
    room.tidy({sent.name: 12_000 * LINE})
    assert sum(map(taken, (quiet, sent, flood))) <= 4 * MB
    assert room.note(quiet).kept_from == 0
    assert room.note(sent).lost_from == room.note(sent).kept_from > 1_000_000
    assert room.note(flood).kept_from > 0
    small = make_room(tmp_path, together=1)
    small.tidy({})
    assert all(
        file.stat().st_size - small.note(file).kept_from == LAST_BYTES for file in (quiet, sent, flood)
    )


@given(st.integers(0, 2**32))
@settings(deadline=None, max_examples=examples(25))
def test_below_the_limit_nothing_goes_and_above_it_each_line_is_there_or_counted(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    luck = random.Random(seed)
    file = tmp_path_factory.mktemp("logs") / "task-a.1.log"
    each = luck.choice([NO_LIMIT, 400_000])
    server, written = LogServer(luck), 0

    async def play() -> None:
        nonlocal written
        room = make_room(file.parent, each=each)
        ship = shipper(file, server, room)
        for _ in range(12):
            count = luck.randrange(2_000)
            write(file, range(written, written + count))
            written += count
            await ship.round(0.0)
            if luck.random() < 0.2:  # kill -9: what the agent knew is gone, its files are there
                room = make_room(file.parent, each=each)
                ship = shipper(file, server, room)
            room.tidy(ship.sent())
        server.luck = None
        await ship_all(ship, server)

    asyncio.run(play())
    lines = lines_of(server)
    numbers = [int(line) for line in lines if not line.startswith("[")]
    assert numbers == sorted(set(numbers))
    counted = [GAP.match(line) for line in lines if line.startswith("[")]
    assert all(counted)
    told = sum(int(found[3]) for found in counted if found)
    exact = not any(found[2] for found in counted if found)
    assert len(numbers) + told == written if exact else len(numbers) + told >= written
    if each == NO_LIMIT:
        assert numbers == list(range(written))


async def test_a_secret_does_not_show_where_a_long_line_is_cut_by_a_gap(file: Path) -> None:
    secret = "engine-secret-" + "x" * 40
    file.write_bytes((secret.encode() + b" ") * 60_000)
    room, server = make_room(file.parent, each=MB), LogServer()
    room.tidy({})
    ship = LogShipper(make_settings(file.parent), "inc", server.send, room)
    ship.follow("task-a", 1, file, [secret])
    await ship_all(ship, server)
    text = server.held.replace(b"\0", b"").decode().partition("agent]\n")[2]
    assert len(server.gaps) == 1 and len(text) > MB // 2
    assert "secret" not in text and "xxxx" not in text


async def test_what_goes_while_it_is_read_is_never_sent_as_zeros(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, server = make_room(file.parent, each=200_000), LogServer()
    write(file, range(10_000))
    assert room.note(file).kept_from == 0  # known from here on: the next file that is opened is the log
    real = open  # room is made between the look at the note and the reading

    def late(path: Path, mode: str = "r") -> object:
        monkeypatch.undo()
        room.tidy({})
        return real(path, mode)

    monkeypatch.setattr(Path, "open", late)
    await ship_all(shipper(file, server, room), server)
    assert len(server.gaps) == 1
    assert b"?" not in server.held


async def test_without_holes_a_log_above_its_limit_is_emptied_whole(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logroom, "_punches", lambda folder: False)
    room, server = make_room(file.parent, each=MB), LogServer()
    engine = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(engine, (b"x" * (LINE - 1) + b"\n") * 20_000)
        room.tidy({})
        os.write(engine, (b"y" * (LINE - 1) + b"\n") * 10)
    finally:
        os.close(engine)
    assert taken(file) < 64 * 1024
    await ship_all(shipper(file, server, room), server)
    first, *rest = lines_of(server)
    found = GAP.match(first)
    assert found and len(rest) + int(found[3]) == 20_010
    assert len(server.held) == 20_010 * LINE


def test_a_log_that_is_gone_takes_its_note_along(file: Path) -> None:
    room = make_room(file.parent, each=MB)
    write(file, range(40_000))
    room.tidy({})
    assert sorted(entry.name for entry in file.parent.iterdir()) == [file.name, f"{file.name}.room"]
    file.unlink()
    assert room.tidy({}) == 0
    make_room(file.parent)
    assert not list(file.parent.iterdir())


async def test_a_log_that_is_not_this_nodes_goes_once_it_has_ended(file: Path) -> None:
    write(file, range(3))
    answers: list[Exception] = [ServerUnreachable("away"), ServerRefused(403, "not_this_nodes", "no")]

    async def send(_: object) -> object:
        raise answers.pop(0)

    ship = LogShipper(make_settings(file.parent), "inc", send, make_room(file.parent))
    ship.follow("task-a", 1, file, [])
    ship.finish("task-a", 1, final=False)
    await ship.round(0.0)
    assert file.exists()
    await ship.round(0.0)
    assert not file.exists()
