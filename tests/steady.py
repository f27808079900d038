"""Clocks that go slower on a busy machine, as everything that is measured by them does.

Each counts beats, and a beat that takes longer than it should is one beat all the same. So on an idle machine
a second is a second, and a machine that stands still makes nobody late.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import psycopg
import pytest

from apps.ops.rest import Api
from tests.production_stack import ProductionStack
from tests.stack import Stack

BEAT_S = 0.02  # about twice what an idle machine needs for it


class OnPostgres(Protocol):
    """Whatever is asked in SQL."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer's rows."""


class SteadyClock:
    """Made by `steady_clock_of` and `steady_clock_of_the_loop`."""

    def __init__(self) -> None:
        self.beats = 0

    def now(self) -> float:
        """Seconds since it began."""
        return self.beats * BEAT_S

    def within(self, limit_s: float, condition: Callable[[], object], what: Callable[[], str]) -> None:
        """Fails with `what` unless the condition comes true within `limit_s` of this clock."""
        give_up_at = self.now() + limit_s
        while not condition():
            if self.now() >= give_up_at:
                pytest.fail(f"not within {limit_s:g} s: {what()}")
            time.sleep(0.05)


@contextmanager
def steady_clock_of(stack: Stack | OnPostgres) -> Iterator[SteadyClock]:
    """A thread asks PostgreSQL by a new connection, or the embedded profile's server, once a beat; it goes as
    long as the block does."""
    clock, stop = SteadyClock(), threading.Event()
    embedded = isinstance(stack, Stack) and not isinstance(stack, ProductionStack)

    def ask() -> bool:
        if embedded:
            return Api(stack.base_url).answers("/healthz")
        try:
            return bool(stack.rows("SELECT 1"))
        except psycopg.Error:
            return False

    def beat() -> None:
        pause_s = BEAT_S
        while not stop.wait(pause_s):
            began = time.monotonic()
            if ask():  # no answer is no beat
                clock.beats += 1
            pause_s = max(0.0, BEAT_S - (time.monotonic() - began))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()
        thread.join()


@asynccontextmanager
async def steady_clock_of_the_loop() -> AsyncIterator[SteadyClock]:
    """For what happens in the event loop of the test itself: its timer, once a beat."""
    clock = SteadyClock()

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            clock.beats += 1

    beating = asyncio.create_task(beat())
    try:
        yield clock
    finally:
        beating.cancel()
