"""Whose turn it is: priority first, then by fair share or first come first served (SCHED-02, SCHED-17).

Owns the order of work, nothing of where it goes. With fair share the order depends on what was placed, so
that it is asked for one unit at a time and told what each one took.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from apps.scheduling.policy.snapshot import CardView, Snapshot, TaskView
from apps.workloads.policy.room import in_percent

Unit = tuple[TaskView, ...]  # one task, or those of one gang that are in the snapshot
Turn = tuple[float, tuple[float, int], int]


def in_order(tasks: Iterable[TaskView]) -> list[TaskView]:
    """Higher priority first, then first come first served; by row id where both tie."""
    return sorted(tasks, key=lambda task: (-task.priority, task.created_at, task.id))


def units_in_order(tasks: Iterable[TaskView]) -> list[Unit]:
    """What is decided at once, in order; a gang stands where the first of its tasks does."""
    units: list[list[TaskView]] = []
    gangs: dict[str, list[TaskView]] = {}
    for task in in_order(tasks):
        if task.gang in gangs:
            gangs[task.gang].append(task)
            continue
        units.append([task])
        if task.gang:
            gangs[task.gang] = units[-1]
    return [tuple(unit) for unit in units]


class Turns(Iterable[Unit]):
    """The units of a snapshot, one after another. With fair weights the next one of a priority is that of
    the tenant whose share of the fleet is smallest: the larger of its parts of all cards and of all their
    memory (a card that does not tell its memory counts as a card only), divided by its weight.

    Tell by `took` what a unit got before the next one is asked for.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        units = units_in_order(snapshot.tasks)
        self.coming = [task for unit in units for task in unit]  # in this order, but for fair shares
        if snapshot.fair_weights is None:
            self._shares: _Shares | None = None
            self._units: Iterator[Unit] = iter(units)
        else:
            self._shares = _Shares(snapshot, snapshot.fair_weights)
            self._units = _by_share(units, self._shares)

    def __iter__(self) -> Iterator[Unit]:
        return self._units

    def took(self, task: TaskView, cards: Iterable[CardView]) -> None:
        """Count what a task got; what it borrows is its lender's."""
        if self._shares is not None:
            promise = in_percent(None if task.whole_cards else task.percent)
            for card in cards:
                self._shares.add(task.tenant_id, card, promise)


class _Shares:
    """What each tenant holds: cards, and MB of their memory."""

    def __init__(self, snapshot: Snapshot, weights: Mapping[int, float]) -> None:
        self._weights = weights
        self._cards: defaultdict[int, float] = defaultdict(float)
        self._memory_mb: defaultdict[int, float] = defaultdict(float)
        every = [card for node in snapshot.nodes for card in node.cards]
        self._all_cards = max(1, len(every))
        self._all_mb = max(1, sum(card.vram_total_mb or 0 for card in every))
        for card in every:
            for hold in card.holds:
                self.add(hold.tenant_id, card, hold.promise)

    def add(self, tenant_id: int, card: CardView, promise: int) -> None:
        part = promise / 100
        self._cards[tenant_id] += part
        self._memory_mb[tenant_id] += part * (card.vram_total_mb or 0)

    def of(self, tenant_id: int) -> float:
        """The weighted dominant share; a tenant of no weight comes after all others."""
        weight = self._weights.get(tenant_id, 1.0)
        if weight <= 0:
            return float("inf")
        cards, memory = self._cards[tenant_id] / self._all_cards, self._memory_mb[tenant_id] / self._all_mb
        return max(cards, memory) / weight


def _by_share(units: list[Unit], shares: _Shares) -> Iterator[Unit]:
    for _, level in groupby(units, key=lambda unit: unit[0].priority):
        lines: defaultdict[int, deque[Unit]] = defaultdict(deque)
        for unit in level:
            lines[unit[0].tenant_id].append(unit)
        turns = [_turn(tenant_id, line, shares) for tenant_id, line in lines.items()]
        heapq.heapify(turns)
        while turns:
            tenant_id = heapq.heappop(turns)[-1]
            line = lines[tenant_id]
            yield line.popleft()
            # Only now: the share is what the tenant holds with the unit that was just decided.
            if line:
                heapq.heappush(turns, _turn(tenant_id, line, shares))


def _turn(tenant_id: int, line: deque[Unit], shares: _Shares) -> Turn:
    first = line[0][0]
    return (shares.of(tenant_id), (first.created_at.timestamp(), first.id), tenant_id)
