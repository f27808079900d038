"""Reads the kernel's process table: sessions, start times, this boot.

Owns the proof that a process is the one that was meant: a pid alone may have been given to another.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import msgspec

log = logging.getLogger("agent.runtime")
PROC = Path("/proc")


class ProcessStat(msgspec.Struct, frozen=True):
    """`start_ticks` counts from boot; with the boot id it names a process for good."""

    pid: int
    state: str
    session: int
    start_ticks: int


def read_stat(pid: int) -> ProcessStat | None:
    """One process, None when it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    # the name in parentheses may hold spaces and parentheses itself
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessStat(pid=pid, state=fields[0], session=int(fields[3]), start_ticks=int(fields[19]))


def boot_id() -> str:
    """Names this boot of the machine; "" where the kernel does not say."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def session_members(session: int) -> list[ProcessStat]:
    """Living processes of a session (zombies are dead: they hold no memory and no port)."""
    stats = (read_stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())  # noqa: PTH208
    return [s for s in stats if s is not None and s.session == session and s.state not in "ZX"]


def kill_session(session: int) -> int:
    """SIGKILL every living member of a session; returns how many there were.

    Each is held by a pidfd and looked at again before the signal, so that none but its members
    can be hit.
    """
    count = 0
    for member in session_members(session):
        try:
            fd = os.pidfd_open(member.pid)
        except ProcessLookupError:
            continue  # ended by itself meanwhile
        try:
            if read_stat(member.pid) is not None and os.getsid(member.pid) == session:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                count += 1
        except ProcessLookupError:
            continue
        except PermissionError as error:
            log.error("process %d of an engine could not be ended: %s", member.pid, error.strerror)
        finally:
            os.close(fd)
    return count
