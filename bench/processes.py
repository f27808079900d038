"""Processes of a run: started in sessions of their own, measured as a session, ended by their id."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from apps.core.free_ports import free_ports

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Crowd:
    """All that a run started; `end` ends it."""

    def __init__(self, verbose: bool) -> None:
        self._out = None if verbose else subprocess.DEVNULL
        self._all: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: list[str], *, cwd: Path, env: dict[str, str] | None = None, core: int | None = None
    ) -> subprocess.Popen[bytes]:
        """`core`: the only processor that it may use."""
        words = command if core is None else ["taskset", "-c", str(core), *command]
        process = subprocess.Popen(
            words, cwd=cwd, env=env, start_new_session=True, stdout=self._out, stderr=self._out
        )
        self._all.append(process)
        return process

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        for process in self._all:
            try:
                process.wait(8)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(8)


def cpu_s(session: int) -> float:
    """User and system seconds of all processes of a session, with those of their ended children."""
    return sum(sum(int(field) for field in fields[11:15]) for _, fields in _members(session)) / TICKS_A_SECOND


def memory_mb(session: int) -> float:
    """Their memory, shared pages counted in part (PSS)."""
    total_kb = 0
    for pid, _ in _members(session):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        total_kb += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total_kb / 1024


def free_port() -> int:
    return free_ports(1)[0]


def _members(session: int) -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(folder.name), fields
