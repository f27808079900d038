"""Names and owners of usage files: which process writes a file, and whether it still lives.

Owns the file name's form only; `apps.gateway` writes the files, `flusher.py` reads them.
"""

import os
import re
import secrets
from pathlib import Path

import msgspec

_NAME = re.compile(r"^usage-(\d+)-(\d+)-(\d{6})-([0-9a-f]{12})\.jsonl$")


class UsageFileName(msgspec.Struct, frozen=True):
    """`owner_pid` and `owner_start` (clock ticks since boot) name the writing process exactly.

    `sequence` rises with each file of one process; only its highest is still written. `salt`
    keeps names apart between hosts that share a database.
    """

    owner_pid: int
    owner_start: int
    sequence: int
    salt: str

    def __str__(self) -> str:
        return f"usage-{self.owner_pid}-{self.owner_start}-{self.sequence:06d}-{self.salt}.jsonl"

    def owned_by(self, other: "UsageFileName") -> bool:
        """Whether both files are of one process."""
        return (self.owner_pid, self.owner_start, self.salt) == (
            other.owner_pid,
            other.owner_start,
            other.salt,
        )


def new_name() -> UsageFileName:
    """A first name for the calling process."""
    pid = os.getpid()
    return UsageFileName(pid, process_start(pid) or 0, 1, secrets.token_hex(6))


def parse_name(name: str) -> UsageFileName | None:
    """None for files that are not usage files."""
    match = _NAME.match(name)
    if match is None:
        return None
    return UsageFileName(int(match[1]), int(match[2]), int(match[3]), match[4])


def owner_lives(name: UsageFileName) -> bool:
    """Whether the process that writes the file still runs (same pid and same start)."""
    return process_start(name.owner_pid) == name.owner_start


def process_start(pid: int) -> int | None:
    """Start of a process in clock ticks since boot; None when there is no such process.

    A zombie counts as gone: it can't write any more.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command name stands in brackets and may hold spaces and brackets itself.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
