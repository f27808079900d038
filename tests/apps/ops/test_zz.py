"""Garbage is collected beside the event loop, so that a cursor in it holds up no stream."""

import asyncio
import gc
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.ops.collector import Collector

BUSY_S = 3.0


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    gc.enable()
    yield made
    gc.enable()


def _fill_the_young() -> list[list[int]]:
    """More new objects than any threshold: Python would collect here and now."""
    return [[number] for number in range(gc.get_threshold()[0] * 3)]


def _knot_with_a_cursor(connection: sqlite3.Connection) -> list[object]:
    knot: list[object] = [connection.execute("SELECT 1 UNION SELECT 2")]  # not read to its end
    knot.append(knot)
    return knot


@pytest.mark.req("OPS-06")
def test_cycles_end_in_the_collectors_thread(collector: Collector) -> None:
    ended_in: list[str] = []
    ended = threading.Event()

    class Knot:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            ended_in.append(threading.current_thread().name)
            ended.set()

    Knot()
    kept = _fill_the_young()
    assert ended.wait(10)
    assert ended_in == ["garbage"]
    assert kept


@pytest.mark.req("OPS-06")
def test_a_cursor_of_a_busy_connection_does_not_hold_up_the_loop(
    collector: Collector, tmp_path: Path
) -> None:
    holder = sqlite3.connect(tmp_path / "db", isolation_level=None)
    holder.execute("PRAGMA journal_mode=WAL")
    holder.execute("CREATE TABLE things (name)")
    waiter = sqlite3.connect(tmp_path / "db", isolation_level=None, check_same_thread=False, timeout=BUSY_S)
    holder.execute("BEGIN EXCLUSIVE")
    began = threading.Event()

    def wait_for_lock() -> None:
        began.set()
        with pytest.raises(sqlite3.OperationalError):
            waiter.execute("BEGIN IMMEDIATE")

    busy = threading.Thread(target=wait_for_lock)
    knots = [_knot_with_a_cursor(waiter) for _ in range(40)]
    busy.start()
    began.wait(5)

    async def longest_gap_s() -> float:
        longest, last = 0.0, time.monotonic()
        while busy.is_alive():
            if knots:
                knots.pop()  # nothing refers to it now but itself
            kept = _fill_the_young()
            await asyncio.sleep(0.01)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            assert kept
        return longest

    longest = asyncio.run(longest_gap_s())
    busy.join()
    holder.close()
    assert longest < BUSY_S / 2
