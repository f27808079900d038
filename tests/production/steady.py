"""A clock that goes slower on a busy machine, as everything that is measured by it does.

A thread asks PostgreSQL by a new connection, once a beat; a beat that takes longer than it should is one beat
all the same. So on an idle machine a second is a second, and a machine that stands still makes nobody late.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.production_stack import ProductionStack

BEAT_S = 0.02  # about twice what an idle machine needs for it


class SteadyClock:
    """Made by `steady_clock_of`."""

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
def steady_clock_of(stack: ProductionStack) -> Iterator[SteadyClock]:
    """It goes as long as the block does."""
    clock, stop = SteadyClock(), threading.Event()

    def beat() -> None:
        pause_s = BEAT_S
        while not stop.wait(pause_s):
            began = time.monotonic()
            try:
                stack.rows("SELECT 1")
            except psycopg.Error:
                continue  # no answer is no beat
            clock.beats += 1
            pause_s = max(0.0, BEAT_S - (time.monotonic() - began))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield clock
    finally:
        stop.set()
        thread.join()
