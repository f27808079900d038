"""Deadlines of all calls and connections of a process, looked at together: one timer, not one a call.

Owns when it is looked, not what a deadline means. A deadline is met up to `step_s` late, never early.
"""

import asyncio
import logging
import math
from typing import Protocol

log = logging.getLogger("heteroflow.gateway")
NEVER = math.inf


class Watched(Protocol):
    """`due` is a time of `time.monotonic`, which is the loop's clock, too, NEVER while nothing is waited
    for; its owner moves it at will."""

    due: float

    def overdue(self) -> None:
        """Called once for each deadline that was passed."""


class Watch:
    """Costs nothing while nothing is watched."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._watched: set[Watched] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: Watched) -> None:
        self._watched.add(one)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._step_s, self._look)

    def watched(self) -> list[Watched]:
        return list(self._watched)

    def drop(self, one: Watched) -> None:
        self._watched.discard(one)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for late in [one for one in self._watched if one.due <= now]:
            late.due = NEVER
            try:
                late.overdue()
            except Exception:
                log.exception("a deadline could not be acted on")
        self._timer = loop.call_later(self._step_s, self._look) if self._watched else None
