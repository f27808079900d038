"""Ends engines that an earlier run of the agent left behind (AGENT-09).

Owns the pid files. Touches a process only when boot, pid and start time prove that it is the one
that was written down; where its leader is gone, the members of its session still are proved by the
session's number, which the kernel gives to nobody else while one of them lives.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import msgspec

from agent.runtime import proctable

log = logging.getLogger("agent.runtime")
END_WAIT_S = 3.0
POLL_S = 0.02


class PidFile(msgspec.Struct, frozen=True):
    """The leader of one engine's session."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def for_process(cls, pid: int) -> PidFile:
        """Describe a process that was just started (it is our child: its pid cannot be reused yet)."""
        stat = proctable.read_stat(pid)
        return cls(pid=pid, start_ticks=stat.start_ticks if stat else 0, boot_id=proctable.boot_id())

    def write(self, file: Path) -> None:
        """Write it down, readable by the agent's user only."""
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.encode(self))

    def is_ours(self) -> bool:
        """Whether the session of that number is still the one that was written down."""
        if self.boot_id != proctable.boot_id():
            return False
        leader = proctable.read_stat(self.pid)
        return leader is None or leader.start_ticks == self.start_ticks


def clean_left_overs(folder: Path) -> list[str]:
    """End every engine written down in this folder, and remove the files.

    Waits until they are gone, so that their ports and memory are free before anything starts.
    Returns the names of those that were still alive. Synchronous: called once, before the loops.
    """
    ended = []
    for file in sorted(folder.glob("*.json")):
        try:
            written = msgspec.json.decode(file.read_bytes(), type=PidFile)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("%s: a pid file that cannot be read is dropped: %s", file.name, error)
            file.unlink(missing_ok=True)
            continue
        if written.is_ours() and _end(written.pid):
            ended.append(file.stem)
        file.unlink(missing_ok=True)
    return ended


def _end(session: int) -> bool:
    if not proctable.kill_session(session):
        return False
    deadline = time.monotonic() + END_WAIT_S
    while proctable.session_members(session):
        if time.monotonic() > deadline:
            log.error("session %d of a former engine does not end", session)
            break
        time.sleep(POLL_S)
    return True
