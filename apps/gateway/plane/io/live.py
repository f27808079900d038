"""Counts of this process that change with every call: in flight, held, asked for, turns."""

from collections.abc import Iterable


class LiveCounts:
    """`in_flight` by task id and `held` by group id, without zeros. `asked`: groups that were asked for since
    somebody took the set; each call's beginning and end count."""

    def __init__(self) -> None:
        self.in_flight: dict[str, int] = {}
        self.held: dict[str, int] = {}
        self.asked: set[str] = set()
        self.turns: dict[str, int] = {}

    def enter(self, task_id: str, group_id: str) -> None:
        self.in_flight[task_id] = self.in_flight.get(task_id, 0) + 1
        if group_id:  # an external engine has none
            self.asked.add(group_id)

    def leave(self, task_id: str, group_id: str) -> None:
        in_flight = self.in_flight
        left = in_flight.get(task_id, 0) - 1
        if left > 0:
            in_flight[task_id] = left
        else:
            in_flight.pop(task_id, None)
        if group_id:
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


def _lower(counts: dict[str, int], key: str) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
