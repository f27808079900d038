"""Logs arrive whole, once and masked, whatever fails in between."""

import asyncio
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract import wire
from agent.contract.codes import Code
from agent.contract.messages import (
    LogReply,
    LogRequest,
)
from agent.errors import ServerRefused, ServerUnreachable
from agent.link.logroom import LogRoom
from agent.link.logship import CONTEXT_BYTES, PIECE_BYTES, LogShipper, read_piece
from tests.agent.fakes import make_settings
from tests.examples import examples

NO_LIMIT = 1 << 40


def make_room(folder: Path, each: int = NO_LIMIT, together: int = NO_LIMIT) -> LogRoom:
    return LogRoom(folder, each=each, together=together)


class LogServer:
    """Takes pieces like the real one: by offset, nothing twice; may lose answers."""

    def __init__(self, luck: random.Random | None = None) -> None:
        self.held = b""
        self.luck = luck
        self.pieces: list[LogRequest] = []
        self.gaps: list[str] = []

    async def send(self, message: LogRequest) -> LogReply:
        message = wire.decode(wire.encode(message), LogRequest)
        self.pieces.append(message)
        if self.luck and self.luck.random() < 0.3:
            raise ServerUnreachable("before it was taken")
        if message.lost_from is not None and message.lost_from == len(self.held) < message.offset:
            self.held += b"\0" * (message.offset - len(self.held))
            self.gaps.append(message.text)
        if message.offset <= len(self.held):
            self.held += message.text.encode()[len(self.held) - message.offset :]
        if self.luck and self.luck.random() < 0.3:
            raise ServerUnreachable("after it was taken")
        return LogReply(next_offset=len(self.held))


@pytest.mark.req("AGENT-10")
@given(st.lists(st.text(max_size=40), max_size=30), st.integers(0, 2**32))
@settings(deadline=None, max_examples=examples(60))
def test_no_line_lost_or_doubled_over_faults_and_restarts(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], seed: int
) -> None:
    luck = random.Random(seed)
    file = tmp_path_factory.mktemp("log") / "task-a.1.log"
    file.touch()
    server = LogServer(luck)

    async def play() -> None:
        ship = None
        for line in lines:
            with file.open("ab") as out:
                out.write(line.encode("utf-8", "replace") + b"\n")
            if ship is None or luck.random() < 0.3:  # the agent was restarted: it begins at 0 again
                ship = LogShipper(
                    make_settings(tmp_path_factory.getbasetemp()), "inc", server.send, make_room(file.parent)
                )
                ship.follow("task-a", 1, file, [])
            await ship.round(0.0)
        server.luck = None
        last = LogShipper(
            make_settings(tmp_path_factory.getbasetemp()), "inc", server.send, make_room(file.parent)
        )
        last.follow("task-a", 1, file, [])
        last.finish("task-a", 1, final=False)
        await last.round(0.0)

    asyncio.run(play())
    assert server.held == file.read_bytes().replace(b"\0", b"?")


@pytest.mark.req("AGENT-10")
async def test_log_is_carried_by_whole_lines_in_rounds_of_two_thousand(tmp_path: Path) -> None:
    file = tmp_path / "task-a.1.log"
    file.write_text("".join(f"{i}\n" for i in range(2500)) + "half")
    server = LogServer()
    ship = LogShipper(make_settings(tmp_path), "inc", server.send, make_room(file.parent))
    ship.follow("task-a", 1, file, [])
    await ship.round(0.0)
    assert server.held.count(b"\n") == 2000
    await ship.round(0.0)
    assert server.held.endswith(b"2499\n")
    ship.finish("task-a", 1, final=True)
    await ship.round(0.0)
    assert server.held.endswith(b"half")
    await ship.round(0.0)
    assert not file.exists()


@pytest.mark.req("AGENT-10", "OPS-08")
async def test_secrets_are_masked_wherever_a_piece_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "task-a.1.log"
    secret = "engine-secret-" + "x" * 40
    start = PIECE_BYTES - 20  # a line so long that the piece is cut inside the secret
    file.write_bytes(b"a" * start + secret.encode() + b" end\n")
    server = LogServer()
    ship = LogShipper(make_settings(tmp_path), "inc", server.send, make_room(file.parent))
    ship.follow("task-a", 1, file, [secret])
    await ship.round(0.0)
    await ship.round(0.0)
    text = server.held.decode()
    assert text == "a" * start + text[start:]
    assert len(text) == file.stat().st_size
    assert "engine-secret" not in text
    assert "xxxx" not in text
    assert len(secret) < CONTEXT_BYTES


@pytest.mark.req("AGENT-10")
@given(st.binary(max_size=300), st.integers(1, 5))
def test_pieces_are_as_long_as_the_bytes_they_stand_for(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, lines: int
) -> None:
    file = tmp_path_factory.mktemp("log") / "l"
    file.write_bytes(raw)
    offset = 0
    while True:
        text, _ = read_piece(file, offset, lines, [], whole=True)
        if not text:
            break
        offset += len(text.encode())
    assert offset == len(raw)


async def test_a_run_that_the_server_does_not_know_yet_waits_a_heartbeat(
    tmp_path: Path,
) -> None:
    """A new run's logs may come before its first heartbeat; they were held up half a minute for it."""
    file = tmp_path / "task-a.1.log"
    file.write_text("line\n")
    taken: list[float] = []

    async def send(message: LogRequest) -> LogReply:
        taken.append(message.offset)
        if len(taken) == 1:
            raise ServerRefused(409, Code.CLAIM_SUPERSEDED, "a newer run holds the claim")
        return LogReply(next_offset=message.offset + len(message.text))

    settings = make_settings(tmp_path)
    ship = LogShipper(settings, "inc", send, make_room(tmp_path))
    ship.follow("task-a", 1, file, [])
    await ship.round(1.0)
    await ship.round(1.0 + settings.heartbeat_s / 2)
    assert taken == [0]
    await ship.round(1.0 + settings.heartbeat_s)
    assert taken == [0, 0] and ship.sent() == {file.name: 5}


async def test_logs_wait_while_the_server_is_away_and_unknown_ones_go(tmp_path: Path) -> None:
    file = tmp_path / "task-a.1.log"
    file.write_text("line\n")
    answers: list[Exception] = [ServerUnreachable("away"), ServerRefused(404, "unknown", "no such task")]

    async def send(_: LogRequest) -> LogReply:
        raise answers.pop(0)

    ship = LogShipper(make_settings(tmp_path), "inc", send, make_room(tmp_path))
    ship.follow_left_overs(tmp_path, now=0.0, wall=0.0)
    await ship.round(1.0)
    assert len(answers) == 2  # left-overs wait a little
    await ship.round(11.0)
    assert file.exists()
    await ship.round(12.0)
    assert not file.exists()
