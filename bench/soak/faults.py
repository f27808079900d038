"""The faults of a soak: an agent, a worker and an engine are killed in turn, while the traffic goes on.

Owns when what is killed, how long it takes until calls are answered again, and which failed calls that
excuses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import openai
import psutil

from tests.production_stack import ProductionStack

EVERY_S = 40.0
BACK_WITHIN_S = 120.0
AFTER_S = 5.0  # calls that began just before it was well again
# What nobody's end excuses: a call that hangs.
HANGS = ("APITimeoutError", "TimeoutError")


@dataclass
class Fault:
    """Seconds of the monotonic clock; `well_at` None = not yet, `back_s` None = never."""

    what: str
    at: float
    well_at: float | None = None

    @property
    def back_s(self) -> float | None:
        return None if self.well_at is None else round(self.well_at - self.at, 1)


class Faults:
    """`start` begins; `end` waits until what was killed last is back."""

    def __init__(self, stack: ProductionStack, every_s: float = EVERY_S) -> None:
        self._stack = stack
        self._every_s = every_s
        self._stop = threading.Event()
        self.made: list[Fault] = []
        self._thread = threading.Thread(target=self._go_on, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join(BACK_WITHIN_S + 30)

    def excuses(self, fault: str, began: float, ended: float) -> bool:
        """Whether a call that failed so, between two moments, met something that had been killed."""
        if fault.startswith(HANGS):
            return False
        return any(
            began <= (made.well_at or ended) + AFTER_S and ended >= made.at for made in list(self.made)
        )

    def complaints(self) -> list[str]:
        """What did not come back in time."""
        return [f"{made.what}: no answer again" for made in self.made if made.well_at is None]

    def _go_on(self) -> None:
        kills: list[tuple[str, Callable[[], psutil.Process]]] = [
            ("agent", lambda: self._stack.part("agent")),
            ("worker", lambda: self._stack.part("worker")),
            ("engine", lambda: self._stack.engines()[0]),
        ]
        for what, find in cycle(kills):
            if self._stop.wait(self._every_s):
                return
            process = find()
            process.kill()
            made = Fault(what, time.monotonic())
            self.made.append(made)
            self._await(made, process)

    def _await(self, made: Fault, killed: psutil.Process) -> None:
        """Until somebody else stands in its place and the model answers twice in a row."""
        give_up_at, good = made.at + BACK_WITHIN_S, 0
        while time.monotonic() < give_up_at:
            good = good + 1 if self._is_back(made.what, killed) else 0
            if good == 2:
                made.well_at = time.monotonic()
                return
            time.sleep(0.2)

    def _is_back(self, what: str, killed: psutil.Process) -> bool:
        if what != "engine" and all(one.pid == killed.pid for one in self._stack.processes(what)):
            return False
        try:
            return bool(self._stack.ask())
        except openai.OpenAIError:
            return False
