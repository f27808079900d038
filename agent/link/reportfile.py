"""Reports that the server has not acknowledged, on disk, for this run of the agent and the next (AGENT-14).

Owns the one file: a line a report, in order, and lines that say up to which they were acknowledged. Never
sends anything, and never gives a report up: a line that cannot be read (the machine went down while it was
written) is the only one that is passed over.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from agent.contract.messages import TaskReport
from agent.wholefile import write_whole

log = logging.getLogger("agent.link")
LARGEST_WASTE_BYTES = 1024 * 1024  # of acknowledged reports, before the file is written anew


class Line(msgspec.Struct, omit_defaults=True):
    """One or the other."""

    report: TaskReport | None = None
    acknowledged: int = 0


class ReportFile:
    """What is written is with the system at once, so that a killed agent loses nothing; `unsynced` is for
    bringing it to the disk. All but `load` raise OSError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._fd: int | None = None
        self._dirty = False

    def load(self) -> list[TaskReport]:
        """What an earlier run left without an acknowledgement, oldest first. Raises nothing."""
        try:
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("%s: the reports of an earlier run can't be read: %s", self._file, error.strerror)
            return []
        reports: list[TaskReport] = []
        for number, text in enumerate(lines, start=1):
            try:
                line = msgspec.json.decode(text, type=Line)
            except msgspec.DecodeError as error:
                log.error("%s: line %d can't be read and is passed over: %s", self._file, number, error)
                continue
            if line.report is not None:
                reports.append(line.report)
            if line.acknowledged:
                reports = [report for report in reports if report.sequence > line.acknowledged]
        return reports

    def append(self, report: TaskReport) -> None:
        self._write(msgspec.json.encode(Line(report=report)) + b"\n")

    def acknowledge(self, up_to: int, waiting: Iterable[TaskReport], *, size: int) -> None:
        """Reports up to this number need not be kept; `waiting` are those behind it, `size` how many."""
        if not size:
            os.ftruncate(self._open(), 0)
        elif os.fstat(self._open()).st_size > LARGEST_WASTE_BYTES * 2:
            self.rewrite(waiting)
        else:
            self._write(msgspec.json.encode(Line(acknowledged=up_to)) + b"\n")

    def rewrite(self, waiting: Iterable[TaskReport]) -> None:
        """Keep these and nothing else, the whole file or none of it."""
        lines = [msgspec.json.encode(Line(report=report)) + b"\n" for report in waiting]
        write_whole(self._file, b"".join(lines))
        self._dirty = False
        self.close()

    def unsynced(self) -> int | None:
        """A descriptor to bring to the disk and then to close, which may take a while; None where all is
        there."""
        if not self._dirty or self._fd is None:
            return None
        self._dirty = False  # what is appended from now on is for the next time
        return os.dup(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._fd = os.open(self._file, flags, 0o600)
        return self._fd

    def _write(self, line: bytes) -> None:
        fd = self._open()
        before = os.fstat(fd).st_size
        self._dirty = True
        if os.write(fd, line) != len(line):
            os.ftruncate(fd, before)  # half a line would spoil the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
