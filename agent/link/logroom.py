"""Keeps the copies of engines' logs within their room on the node's disk (AGENT-10, AGENT-14).

Owns what of them is let go of: the oldest bytes first, and what the server has taken before what it has
not; and, beside each file, the note of what went. Bytes go as holes at the front of a file: offsets stay
what they are, and engines write on undisturbed. Never touches the last part of a log.
"""

from __future__ import annotations

import ctypes
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.wholefile import write_whole

log = logging.getLogger("agent.link")
LAST_BYTES = 64 * 1024  # of each log, kept whatever the limits say
STEP_BYTES = 1024 * 1024
READ_BYTES = 256 * 1024
KEEP_SIZE, PUNCH_HOLE = 1, 2  # linux/falloc.h
_libc = ctypes.CDLL(None, use_errno=True)


class Note(msgspec.Struct):
    """What a file has let go of: all before `kept_from`. Of that, [lost_from, kept_from) went before the
    server was known to have it; `lost_lines` lines ended there."""

    kept_from: int = 0
    lost_from: int = 0
    lost_lines: int = 0


@dataclass
class Copy:
    """One log on the disk, as one look found it."""

    file: Path
    note: Note
    size: int
    sent: int

    @property
    def kept(self) -> int:
        return max(0, self.size - self.note.kept_from)

    @property
    def may_go_unsent(self) -> int:
        return max(0, self.kept - LAST_BYTES)

    @property
    def may_go_sent(self) -> int:
        return max(0, min(self.sent - self.note.kept_from - LAST_BYTES, self.may_go_unsent))


class LogRoom:
    """`each` bytes for one attempt's log, `together` for all in the folder and for the file `beside` it,
    which is not touched. Above a limit they shrink to seven eighths of it, so that the next line need not
    cost a line."""

    def __init__(self, folder: Path, *, each: int, together: int, beside: Path | None = None) -> None:
        self._folder = folder
        self._each = each
        self._together = together
        self._beside = beside
        self._notes: dict[str, Note] = {}
        self._holes = _punches(folder)
        if not self._holes:
            log.error(
                "the file system of %s gives back no parts of files: a log above its limit is emptied whole",
                folder,
            )
        for note in folder.glob("*.log.room"):
            if not note.with_suffix("").exists():
                note.unlink(missing_ok=True)

    def note(self, file: Path) -> Note:
        """What this log has let go of."""
        found = self._notes.get(file.name)
        if found is None:
            try:
                found = msgspec.json.decode(_note_file(file).read_bytes(), type=Note)
            except (FileNotFoundError, msgspec.DecodeError):
                found = Note()
            self._notes[file.name] = found
        return found

    def forget(self, file: Path) -> None:
        """The log is gone."""
        self._notes.pop(file.name, None)
        _note_file(file).unlink(missing_ok=True)

    def tidy(self, sent: Mapping[str, int]) -> int:
        """Bring all within the limits; returns how many bytes went. `sent`: by file name, up to where the
        server has it. Raises OSError."""
        copies = [Copy(file, self.note(file), size, sent.get(file.name, 0)) for file, size in self._files()]
        gone = 0
        for copy in copies:
            if copy.kept > self._each:
                gone += self._shrink(copy, copy.kept - self._each * 7 // 8)
        excess = sum(copy.kept for copy in copies) + self._size_beside() - self._together
        if excess <= 0:
            return gone
        excess += self._together // 8
        for unsent in (False, True):
            for copy, size in _shares(copies, excess, unsent=unsent):
                went = self._shrink(copy, size)
                gone, excess = gone + went, excess - went
        return gone

    def _size_beside(self) -> int:
        try:
            return self._beside.stat().st_size if self._beside else 0
        except FileNotFoundError:
            return 0

    def _files(self) -> Iterator[tuple[Path, int]]:
        for file in self._folder.glob("*.log"):
            try:
                yield file, file.stat().st_size
            except FileNotFoundError:  # carried and removed meanwhile
                continue

    def _shrink(self, copy: Copy, size: int) -> int:
        """Let go of the oldest `size` bytes, the note before the bytes."""
        before = copy.note
        upto = before.kept_from + min(size, copy.may_go_unsent) if self._holes else copy.size
        if upto <= before.kept_from:
            return 0
        try:
            with copy.file.open("r+b") as disk:
                copy.note = _noted(disk.fileno(), before, upto, copy.sent)
                self._notes[copy.file.name] = copy.note  # first: a reader looks here after its reading
                write_whole(_note_file(copy.file), msgspec.json.encode(copy.note), lasting=False)
                _give_back(disk.fileno(), upto, holes=self._holes)
        except FileNotFoundError:
            self.forget(copy.file)
            return 0
        if copy.note.lost_from < upto:
            log.warning(
                "%s is above its room: %s bytes went that the server had not taken",
                copy.file.name,
                upto - max(before.kept_from, copy.note.lost_from),
            )
        return upto - before.kept_from


def _shares(copies: list[Copy], excess: int, *, unsent: bool) -> list[tuple[Copy, int]]:
    """How much each log gives: always a step of the largest, so that a flood costs the flood first."""
    may = {id(copy): copy.may_go_unsent if unsent else copy.may_go_sent for copy in copies}
    share = dict.fromkeys(may, 0)
    while excess > 0 and copies:
        largest = max(copies, key=lambda copy: (min(may[id(copy)], 1), copy.kept - share[id(copy)]))
        step = min(STEP_BYTES, excess, may[id(largest)])
        if step <= 0:
            break
        may[id(largest)] -= step
        share[id(largest)] += step
        excess -= step
    return [(copy, share[id(copy)]) for copy in copies if share[id(copy)]]


def _noted(fd: int, before: Note, upto: int, sent: int) -> Note:
    """The note after all before `upto` is let go of."""
    if sent >= upto:
        return Note(kept_from=upto, lost_from=upto)
    if sent <= before.kept_from and before.lost_from < before.kept_from:
        lines = before.lost_lines + _lines(fd, before.kept_from, upto)
        return Note(kept_from=upto, lost_from=before.lost_from, lost_lines=lines)
    start = max(before.kept_from, sent)
    return Note(kept_from=upto, lost_from=start, lost_lines=_lines(fd, start, upto))


def _lines(fd: int, start: int, end: int) -> int:
    """Line ends in [start, end)."""
    count = 0
    while start < end:
        piece = os.pread(fd, min(READ_BYTES, end - start), start)
        if not piece:
            break
        count += piece.count(b"\n")
        start += len(piece)
    return count


def _note_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.room")


def _give_back(fd: int, upto: int, *, holes: bool) -> None:
    if holes:
        _punch(fd, upto)
    else:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, upto)  # a hole as long as what was there


def _punch(fd: int, upto: int) -> None:
    """Give back the blocks of [0, upto); the length stays. Raises OSError."""
    if _libc.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(upto)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _punches(folder: Path) -> bool:
    """Whether the folder's file system gives back parts of files."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"x")
        probe.flush()
        try:
            _punch(probe.fileno(), 1)
        except OSError as error:
            log.debug("no holes: %s", error.strerror)
            return False
    return True
