"""Keeps the server and the agent running, and ends them in order.

Runs in the main thread of `manage.py up`. The agent ends first, so that it can report and stop its
engines while the server still listens; then the server drains. Never reads or writes a row.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
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


class Supervisor:
    """Two children: `server` at once, `agent` as soon as `server_ready()` first says yes."""

    def __init__(self, server: Child, agent: Child, server_ready: Callable[[], bool]) -> None:
        self.server = server
        self.agent = agent
        self.server_ready = server_ready
        self.stop = threading.Event()
        self.hurry = threading.Event()

    def take_signals(self) -> None:
        """First SIGINT or SIGTERM: an ordered stop; a second one: at once."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()

    def run(self) -> None:
        """Until a signal comes; then both children are gone."""
        try:
            self.server.start(time.monotonic())
            agent_runs = False
            while not self.stop.wait(WATCH_EVERY_S):
                now = time.monotonic()
                self.server.watch(now)
                if agent_runs:
                    self.agent.watch(now)
                elif self.server_ready():
                    self.agent.start(now)
                    agent_runs = True
        finally:
            for child in (self.agent, self.server):
                child.request_stop()
                child.wait_or_kill(self.hurry)
