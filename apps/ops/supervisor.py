"""Keeps children running stage by stage, and ends them in the opposite order.

Runs in the main thread of `manage.py up` and `run_production`. Calls that run end before all else, then the
agent, the last stage, so that it can report and stop its engines while the server still listens; then the
server; a database goes last. Never reads or writes a row.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

from apps.ops.children import Child

WATCH_EVERY_S = 0.2


class Printer:
    """Lines from several threads to one output. A closed output is no reason to stop serving."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, line: str) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            except (OSError, ValueError):
                self._closed = True


@dataclass(frozen=True)
class Stage:
    """Children that start together. `prepare` runs before that, in the main thread; the next stage waits
    until `ready` first says yes. `drain` runs before anything is ended, and returns when nothing here needs
    the later stages any more, or at once when the event says to hurry."""

    children: Sequence[Child]
    ready: Callable[[], bool] = lambda: True
    prepare: Callable[[], None] = lambda: None
    drain: Callable[[threading.Event], None] = lambda hurry: None


class Supervisor:
    """Starts each stage as soon as the one before is ready."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = stages
        self.stop = threading.Event()
        self.hurry = threading.Event()

    def take_signals(self) -> None:
        """First SIGINT or SIGTERM: an ordered stop; a second one: at once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    def run(self) -> None:
        """Until a signal comes; then all children are gone. Raises what a stage's `prepare` raises."""
        waiting = list(self.stages)
        begun: list[Stage] = []
        try:
            while True:
                if waiting and (not begun or begun[-1].ready()):
                    stage = waiting.pop(0)
                    stage.prepare()
                    begun.append(stage)
                    for child in stage.children:
                        child.start(time.monotonic())
                if self.stop.wait(WATCH_EVERY_S):
                    return
                for stage in begun:
                    for child in stage.children:
                        child.watch(time.monotonic())
        finally:
            for stage in begun:
                stage.drain(self.hurry)
            for stage in reversed(begun):
                for child in stage.children:
                    child.request_stop()
                for child in stage.children:
                    child.wait_or_kill(self.hurry)
