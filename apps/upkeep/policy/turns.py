"""Whose turn it is to get a replacement (LIFE-09): of each service one, and each tenant in turn.

Pure: no Django, no clock.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Serving:
    """A task that serves on a node that is being emptied since `since`."""

    task_id: int
    group_id: int
    tenant_id: int
    priority: int
    since: datetime
    forced: bool = False


def in_turn(serving: Iterable[Serving], busy: Mapping[int, int]) -> tuple[list[Serving], list[Serving]]:
    """Those whose turn it is, in order, and those that wait for their service's other replicas. `busy`: by
    service, how many replicas of it are on their way already. What is forced waits for nobody."""
    turn: list[Serving] = []
    later: list[Serving] = []
    taken: set[int] = set()
    for one in sorted(serving, key=lambda one: (not one.forced, one.since, one.task_id)):
        if one.forced or (not busy.get(one.group_id) and one.group_id not in taken):
            turn.append(one)
            taken.add(one.group_id)
        else:
            later.append(one)
    return _round_robin(turn), later


def _round_robin(turn: list[Serving]) -> list[Serving]:
    """Higher priority first; within it one of each tenant before the second of any."""
    before: Counter[int] = Counter()
    ranked = []
    for one in sorted(turn, key=lambda one: (not one.forced, -one.priority, one.since, one.task_id)):
        ranked.append((not one.forced, -one.priority, before[one.tenant_id], one.since, one.task_id, one))
        before[one.tenant_id] += 1
    return [row[-1] for row in sorted(ranked, key=lambda row: row[:-1])]
