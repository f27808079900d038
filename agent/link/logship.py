"""Carries engines' output to the server, piece by piece (AGENT-10).

Owns the offsets. A piece says where its first byte stands in the whole log; the server answers with
the offset that it wants next, and that wins: so nothing is lost or doubled, whoever of the two was
restarted. Masks keep the length, therefore offsets mean the same in the file and on the wire. What the
disk had no room for (`logroom.py`) is said in its place, in the log itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.config import Settings
from agent.contract.codes import Code
from agent.contract.messages import LogReply, LogRequest
from agent.errors import ServerRefused, ServerUnreachable
from agent.link.logroom import LogRoom, Note
from agent.masking import mask, printable

log = logging.getLogger("agent.link")
PIECE_BYTES = 128 * 1024
CONTEXT_BYTES = 4096  # read before and after the piece, so that a secret cut in two is still seen
REFUSED_PAUSE_S = 30.0
RECORD_BYTES = 400  # room for the sentence about a gap
_NAME = re.compile(r"(?P<task>task-[A-Za-z0-9_-]{1,80})\.(?P<attempt>\d{1,9})\.log\Z")


@dataclass
class Followed:
    """One attempt's log. `not_before` in seconds of the monotonic clock."""

    task_id: str
    attempt: int
    file: Path
    secrets: list[str] = field(default_factory=list)
    offset: int = 0
    ended: bool = False
    final: bool = False  # never started again: the file may go once it is carried
    not_before: float = 0.0


class LogShipper:
    """`follow` and `finish` are told by the supervisor; `round(now)` carries what is there."""

    def __init__(
        self,
        settings: Settings,
        incarnation: str,
        send: Callable[[LogRequest], Awaitable[LogReply]],
        room: LogRoom,
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._send = send
        self._room = room
        self._followed: dict[tuple[str, int], Followed] = {}

    def follow(self, task_id: str, attempt: int, file: Path, secrets: list[str]) -> None:
        """Carry this log from now on. An attempt that is started again goes on in the same file."""
        known = self._followed.get((task_id, attempt))
        if known is None:
            self._followed[task_id, attempt] = Followed(task_id, attempt, file, secrets)
        else:
            known.ended, known.secrets, known.not_before = False, secrets, 0.0

    def finish(self, task_id: str, attempt: int, *, final: bool) -> None:
        """The engine has ended. `final`: the attempt is gone for good, so the file is removed once
        all is carried; otherwise it stays, since the same attempt may go on in it."""
        known = self._followed.get((task_id, attempt))
        if known is not None:
            known.ended = True
            known.final = final

    def follow_left_overs(self, folder: Path, now: float, wall: float) -> None:
        """Take up logs of an earlier run; those untouched for `log_keep_s` are removed once carried.

        They wait a little: an attempt that is claimed again brings its secrets along, and only then
        they are known for masking. `wall` in epoch seconds.
        """
        for file in sorted(folder.glob("*.log")):
            match = _NAME.match(file.name)
            if match is not None:
                key = match["task"], int(match["attempt"])
                later = now + self._settings.leftover_log_delay_s
                old = wall - file.stat().st_mtime > self._settings.log_keep_s
                self._followed[key] = Followed(*key, file, ended=True, final=old, not_before=later)

    async def run(self, clock: Callable[[], float]) -> None:
        """Rounds for ever."""
        while True:
            await self.round(clock())
            await asyncio.sleep(self._settings.log_round_s)

    def sent(self) -> dict[str, int]:
        """By file name, up to where the server is known to have each log."""
        return {one.file.name: one.offset for one in self._followed.values()}

    async def keep_room(self) -> None:
        """Keep the folder within its limits for ever, whether the server answers or not."""
        while True:
            try:
                await asyncio.to_thread(self._room.tidy, self.sent())
            except OSError as error:
                log.error("the logs' room can't be kept: %s", error.strerror)
            await asyncio.sleep(self._settings.log_round_s)

    async def round(self, now: float) -> None:
        """Carry at most `log_lines_a_round` lines and `log_round_kb` of each log; without a server, none."""
        for log_of in list(self._followed.values()):
            if now < log_of.not_before:
                continue
            try:
                await self._carry(log_of, now)
            except ServerUnreachable as error:
                log.debug("logs wait: %s", error)
                return
            except OSError as error:
                log.warning("%s cannot be read: %s", log_of.file.name, error.strerror)
                log_of.not_before = now + REFUSED_PAUSE_S

    async def _carry(self, log_of: Followed, now: float) -> None:
        lines = self._settings.log_lines_a_round
        most = log_of.offset + self._settings.log_round_kb * 1024
        ended = log_of.ended  # as it was before reading: then an empty read is the end
        while lines > 0 and log_of.offset < most:
            message, count = self._next(log_of, lines, ended)
            if message is None:
                if ended and log_of.ended and log_of.final:
                    self._drop(log_of)
                return
            try:
                reply = await self._send(message)
            except ServerRefused as error:
                self._refused(log_of, error, now)
                return
            lines -= count
            moved = reply.next_offset != log_of.offset
            log_of.offset = max(0, reply.next_offset)
            if not moved:
                return

    def _next(self, log_of: Followed, lines: int, ended: bool) -> tuple[LogRequest | None, int]:
        """The next piece, or what is said of a gap, and how many lines it is."""
        known = self._room.note(log_of.file).kept_from
        if log_of.offset >= known:
            text, count = read_piece(log_of.file, log_of.offset, lines, log_of.secrets, whole=ended)
            # looked at again: what went while it was read was read as zeros
            if self._room.note(log_of.file).kept_from <= log_of.offset:
                return (self._message(log_of, log_of.offset, text), count) if text else (None, 0)
        note = self._room.note(log_of.file)
        place = read_gap(log_of.file, log_of.offset, note, whole=ended)
        if place is None:
            return None, 0
        end, more_lines = place
        text = tell_gap(log_of.offset, end, more_lines, note)
        return self._message(log_of, end - len(text), text, lost_from=log_of.offset), 1

    def _message(self, log_of: Followed, offset: int, text: str, lost_from: int | None = None) -> LogRequest:
        return LogRequest(self._incarnation, log_of.task_id, log_of.attempt, offset, text, lost_from)

    def _refused(self, log_of: Followed, error: ServerRefused, now: float) -> None:
        log.warning("%s: the server does not take this log: %s", log_of.file.name, error)
        if log_of.ended and (error.status in (404, 410) or error.code == Code.NOT_THIS_NODES):
            self._drop(log_of)  # the task is unknown there: nobody will ever ask for it
        elif error.code == Code.CLAIM_SUPERSEDED:
            # Our first heartbeat is still on its way: by it the server knows this run as the newest.
            log_of.not_before = now + self._settings.heartbeat_s
        else:
            log_of.not_before = now + REFUSED_PAUSE_S

    def _drop(self, log_of: Followed) -> None:
        self._followed.pop((log_of.task_id, log_of.attempt), None)
        log_of.file.unlink(missing_ok=True)
        self._room.forget(log_of.file)


def read_piece(
    file: Path, offset: int, max_lines: int, secrets: list[str], *, whole: bool
) -> tuple[str, int]:
    """The next lines from `offset`, masked, and how many they are; ("", 0) when there is nothing.

    Only whole lines, unless the log has ended (`whole`) or one line fills the piece; a cut never
    splits a character. Raises OSError; a file that is not there yet is empty.
    """
    start = max(0, offset - CONTEXT_BYTES)
    try:
        with file.open("rb") as source:
            source.seek(start)
            raw = source.read(offset - start + PIECE_BYTES + CONTEXT_BYTES)
    except FileNotFoundError:
        return "", 0
    fresh = raw[offset - start :][:PIECE_BYTES]
    if not fresh:
        return "", 0
    end = _cut(fresh, max_lines, whole)
    if end == 0:
        return "", 0
    clean = mask(printable(raw), secrets)[offset - start :][:end]
    # the piece may begin inside a character whose first bytes stood in the context
    text = printable(clean).decode()
    return text, max(1, text.count("\n"))


def read_gap(file: Path, offset: int, note: Note, *, whole: bool) -> tuple[int, int] | None:
    """Where a log goes on behind a gap that begins at `offset`: at the first whole line that is left; and
    how many line ends are passed over on the way there. None while there is no such line yet, unless the
    log has ended (`whole`) or the line is longer than a piece. Raises OSError."""
    start = max(note.kept_from, offset + RECORD_BYTES)
    with file.open("rb") as source:
        source.seek(note.kept_from)
        passed = source.read(start - note.kept_from).count(b"\n")
        ahead = source.read(PIECE_BYTES)
    line_end = ahead.find(b"\n")
    if line_end >= 0:
        return start + line_end + 1, passed + 1
    if len(ahead) == PIECE_BYTES or (whole and ahead):
        return start + len(ahead), passed
    return None


def tell_gap(start: int, end: int, passed: int, note: Note) -> str:
    """The line that stands for the bytes [start, end) of a log; it takes the place of their end."""
    if start < note.lost_from:
        lines = "how many lines is not known"
    else:
        most = "" if start == note.lost_from else "at most "
        lines = f"{most}{note.lost_lines + passed} lines"
    return (
        f"[heteroflow: {end - start} bytes of this log are missing here ({lines}): it outgrew its room on "
        "the node before the server had taken them; see log_copy_mb and log_copies_mb of the agent]\n"
    )


def _cut(fresh: bytes, max_lines: int, whole: bool) -> int:
    """Where the piece ends: after the last whole line that fits."""
    end = 0
    for _ in range(max_lines):
        place = fresh.find(b"\n", end)
        if place < 0:
            break
        end = place + 1
    else:
        return end
    full = len(fresh) >= PIECE_BYTES
    if end == 0 and full:
        # one line longer than a piece: cut it, but not inside a character
        end = len(fresh)
        while end > len(fresh) - 4 and fresh[end - 1] & 0xC0 == 0x80:
            end -= 1
        return end - 1 if fresh[end - 1] >= 0xC0 else len(fresh)
    return len(fresh) if whole and not full else end
