"""Counts of this process that change with every call: in flight, turns, sidelined."""

import time


class LiveCounts:
    """`in_flight` by task id, without zeros."""

    def __init__(self, sideline_s: float) -> None:
        self.in_flight: dict[str, int] = {}
        self.turns: dict[str, int] = {}
        self._sideline_s = sideline_s
        self._sidelined: dict[str, float] = {}

    def enter(self, task_id: str) -> None:
        self.in_flight[task_id] = self.in_flight.get(task_id, 0) + 1

    def leave(self, task_id: str) -> None:
        left = self.in_flight.get(task_id, 0) - 1
        if left > 0:
            self.in_flight[task_id] = left
        else:
            self.in_flight.pop(task_id, None)

    def sideline(self, task_id: str) -> None:
        """Passes a replica over for a while: it has just refused a connection."""
        self._sidelined[task_id] = time.monotonic() + self._sideline_s

    def welcome(self, task_id: str) -> None:
        """The replica has answered, so it is taken like any other again."""
        self._sidelined.pop(task_id, None)

    def sidelined(self) -> set[str]:
        if not self._sidelined:
            return set()
        now = time.monotonic()
        self._sidelined = {task: until for task, until in self._sidelined.items() if until > now}
        return set(self._sidelined)
