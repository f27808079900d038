"""Which attempts were put to sleep here, beyond the life of this agent (SLEEP-01, AGENT-09).

Owns one small file for each. A stopped container looks the same whether it sleeps or has failed, and a
running one whether its engine still has its weights: only whoever stopped it knows. Touches no container.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from agent.supervisor.desired import Key
from agent.wholefile import write_whole

log = logging.getLogger("agent.supervisor")


class Mark(StrEnum):
    """How far the sleep or the wake is."""

    SLEEP = "sleep"  # about to be stopped, or stopped: it must not serve before it was started anew
    WAKE = "wake"  # started anew, or about to be: it must not serve before it has shown a token


class SleepMarks:
    """Set before the thing is done, so that a run of the agent that ends in between misleads no other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        self._marks: dict[Key, Mark] = {}
        for file in folder.iterdir():
            key = _key_of(file.name)
            try:
                mark = Mark(file.read_text())
            except ValueError:
                mark = None
            if key is None or mark is None:
                file.unlink()
            else:
                self._marks[key] = mark

    def get(self, key: Key) -> Mark | None:
        return self._marks.get(key)

    def set(self, key: Key, mark: Mark) -> None:
        """Keep it; where the disk refuses, this run of the agent still knows."""
        self._marks[key] = mark
        try:
            write_whole(self._file(key), mark.encode(), lasting=False)  # the loop of heartbeats waits for it
        except OSError as error:
            log.error("%s.%d: its sleep can't be noted for the agent's next run: %s", *key, error.strerror)

    def drop(self, key: Key) -> None:
        """It serves again, or is over."""
        if self._marks.pop(key, None) is not None:
            self._file(key).unlink(missing_ok=True)

    def keep_only(self, keys: Collection[Key]) -> None:
        """Drop all others."""
        for key in [key for key in self._marks if key not in keys]:
            self.drop(key)

    def _file(self, key: Key) -> Path:
        return self._folder / f"{key[0]}.{key[1]}.sleep"


def _key_of(name: str) -> Key | None:
    task, _, attempt = name.removesuffix(".sleep").rpartition(".")
    return (task, int(attempt)) if task and attempt.isdigit() and name.endswith(".sleep") else None
