"""Counts of this process that change with every call: in flight, held, asked for, turns, sidelined."""

import time
from collections.abc import Iterable


class LiveCounts:
    """`in_flight` by task id and `held` by group id, without zeros. `asked`: groups that were asked for since
    somebody took the set; each call's beginning and end count."""

    def __init__(self, sideline_s: float) -> None:
        self.in_flight: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.asked: set[str] = set()
        self.turns: dict[str, int] = {}
        self._sideline_s = sideline_s
        self._sidelined: dict[str, float] = {}

    def enter(self, task_id: str, group_id: str) -> None:
        self.in_flight[task_id] = self.in_flight.get(task_id, 0) + 1
        self.asked.add(group_id)

    def leave(self, task_id: str, group_id: str) -> None:
        _lower(self.in_flight, task_id)
        self.asked.add(group_id)

    def hold(self, group_ids: Iterable[str]) -> None:
        """A call waits for a replica of one of these to be called back."""
        for group_id in group_ids:
            self.held[group_id] = self.held.get(group_id, 0) + 1

    def let_go(self, group_ids: Iterable[str]) -> None:
        for group_id in group_ids:
            _lower(self.held, group_id)
            self.asked.add(group_id)

    def take_asked(self) -> set[str]:
        asked, self.asked = self.asked, set()
        return asked

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


def _lower(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
