"""The last bytes of answers, kept back until the loop has done what came at once: then the records of their
calls are written in one go, and after them they go out (GW-12, GW-15).

A turn of the loop ends dozens of calls: one write to the disk for all, and each process beside this one is
woken once. Owns that order; knows neither calls nor records.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("heteroflow.gateway")


MOST_BYTES = 64 * 1024
"""Longer answers are not held back, nor copied to be."""


class Line(Protocol):
    def write(self, data: bytes) -> None: ...


class Outbox:
    """Of one loop. `first` must have ended before any of the bytes go out."""

    __slots__ = ("_first", "_held")

    def __init__(self, first: Callable[[], object]) -> None:
        self._first = first
        self._held: list[tuple[Line, bytes]] = []

    def hold(self, line: Line, data: bytes) -> None:
        """`line` gets `data` within this turn of the loop."""
        if not self._held:
            asyncio.get_running_loop().call_soon(self.flush)
        self._held.append((line, data))

    def flush(self) -> None:
        held, self._held = self._held, []
        try:
            self._first()
        except Exception:  # as where the disk is full: what is recorded late is not what callers wait for
            log.exception("records could not be written")
        for line, data in held:
            try:
                line.write(data)
            except Exception:  # one connection's fault, and the answers of many
                log.exception("an answer could not be handed over")
