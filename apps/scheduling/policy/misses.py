"""Why nodes do not take a shape of task, many at once: each counts for the first filter that refuses it.

Owns counting and finding the nearest miss; its numbers are told by asking that node alone.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.filters import allow_list, gpu_type, online
from apps.scheduling.policy.lanes import Array, Bools, CardLanes, NodeLanes, count_cards
from apps.scheduling.policy.registry import OF_CARDS, Filter, Of, no_numbers

# Further off than any miss, in MB or percent.
FAR = 1 << 29

# What was found out is kept for so many kinds of task; each takes some ten bytes a node.
KEPT = 256

Passing = tuple[bool, ...]  # by kind of facts
NONE: Bools = np.array([], np.bool_)


class Miss(NamedTuple):
    """So many nodes are refused by this filter first; `nearest` is the place of the nearest miss."""

    by: Filter
    nodes: int
    nearest: int


class _Rest:
    """The nodes that were not refused yet stand among these, from `first` on; `kinds` of their cards pass the
    filters of facts, and `left` were not refused by others either, `count` by node."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.first, self.last = 0, columns.count
        self.alive: Bools = np.ones(columns.count, np.bool_)
        self.kinds = tuple(facts is not None for facts in columns.card_kinds)
        self._left: Bools | None = None
        self.count: Array = columns.count_kinds(self.kinds)
        self._view()

    def copied(self) -> "_Rest":
        """One to go on from here."""
        other = _Rest.__new__(_Rest)
        other.__dict__.update(self.__dict__)
        other.alive = self.alive.copy()
        return other

    @property
    def left(self) -> Bools:
        """Cards that were not refused."""
        if self._left is None:
            kinds: Bools = np.array(self.kinds, np.bool_)
            self._left = kinds[self.columns.card_kind[:, self.where]]
        return self._left

    def narrow(self, one: Filter, ask: Ask) -> Bools:
        """Ask of the cards; answers which were left before."""
        if one.of is Of.CARD_FACTS:
            passed = [facts is None or one.fits(ask, facts) for facts in self.columns.card_kinds]
            before = self.left if one.short is not None else NONE
            if not all(passed):
                self.kinds = tuple(had and fits for had, fits in zip(self.kinds, passed, strict=True))
                self.count = self.columns.count_kinds(self.kinds)[self.where]
                self._left = None
            return before
        before = self.left
        passed = one.fits(ask, self.cards.model, before) if one.of is Of.CARDS else one.fits(ask, self.cards)
        self._left = before & np.array(passed, np.bool_).reshape(before.shape)
        self.count = count_cards(self._left)
        return before

    def drop(self, refused: Bools) -> None:
        """These nodes were refused."""
        self.alive &= refused ^ True
        rest = self.alive.nonzero()[0]
        start, stop = (int(rest[0]), int(rest[-1]) + 1) if len(rest) else (0, 0)
        if 2 * (stop - start) < self.last - self.first:
            self.alive, self.count = self.alive[start:stop], self.count[start:stop]
            self._left = None if self._left is None else self._left[:, start:stop]
            self.first, self.last = self.first + start, self.first + stop
            self._view()

    def _view(self) -> None:
        self.where = slice(self.first, self.last)
        self.nodes, self.cards = NodeLanes(self.columns, self.where), CardLanes(self.columns, self.where)


class Misses:
    """Finds them over one fleet; `filters_of(ask)` are the filters that apply to a task."""

    def __init__(self, columns: Columns, filters_of: Callable[[Ask], Sequence[Filter]]) -> None:
        self._columns = columns
        self._filters_of = filters_of
        self._starts: dict[Hashable, tuple[_Rest, tuple[Miss, ...]]] = {}
        self._offline: dict[tuple[Passing, Passing], int] = {}

    def find(self, ask: Ask) -> tuple[list[Miss], int]:
        """The misses in the order of the filters, and how many nodes take the task."""
        self._columns.settle()
        filters = self._filters_of(ask)
        first = list(takewhile(_is_settled, filters))
        known, before = self._start(ask, first)
        rest, found = known.copied(), list(before)
        for one in filters[len(first) :]:
            if rest.first == rest.last:
                break
            _ask(one, ask, rest, found)
        return found, int(np.count_nonzero(rest.alive))

    def key_of(self, ask: Ask) -> Hashable:
        """What tasks have in common that find the same misses with the same numbers."""
        passing = self._passing(ask, list(takewhile(_is_settled, self._filters_of(ask))))
        refusing = any(one.tell is not no_numbers and not all(passed) for one, passed in passing)
        return (
            tuple([(one.name, passed) for one, passed in passing]),
            ask.node_key if refusing else (),
            ask.card_key,
            ask.base_key,
        )

    def _passing(self, ask: Ask, filters: Sequence[Filter]) -> list[tuple[Filter, Passing]]:
        """Which kinds of nodes pass; () for filters that ask nothing of the task."""
        kinds = self._columns.node_kinds
        return [
            (one, () if one.fixed else tuple([bool(one.fits(ask, facts)) for facts in kinds]))
            for one in filters
        ]

    def _start(self, ask: Ask, filters: Sequence[Filter]) -> tuple[_Rest, tuple[Miss, ...]]:
        """What the first filters refuse, whose answers no booking changes: the same for many tasks."""
        key = tuple([(one.name, passed) for one, passed in self._passing(ask, filters)])
        found = self._starts.get(key)
        if found is None:
            rest, misses = _Rest(self._columns), list[Miss]()
            for one in filters:
                _ask(one, ask, rest, misses)
            if len(self._starts) >= KEPT:
                self._starts.clear()
            found = self._starts[key] = (rest, tuple(misses))
        return found

    def count_offline(self, ask: Ask) -> int:
        """How many nodes that the tenant may use have cards of the type; 0 where one of them is online."""
        columns = self._columns
        of_type = tuple(facts is not None and gpu_type.fits(ask, facts) for facts in columns.card_kinds)
        opened = tuple(allow_list.fits(ask, facts) for facts in columns.node_kinds)
        found = self._offline.get((of_type, opened))
        if found is None:
            there = (columns.count_kinds(of_type) > 0) & np.array(opened, np.bool_)[columns.node_kind]
            lives = np.array([online.fits(ask, facts) for facts in columns.node_kinds], np.bool_)
            alive = (there & lives[columns.node_kind]).any()
            found = self._offline[of_type, opened] = 0 if alive else int(np.count_nonzero(there))
        return found


def _is_settled(one: Filter) -> bool:
    return one.fixed or one.of is Of.NODE_FACTS


def _ask(one: Filter, ask: Ask, rest: _Rest, found: list[Miss]) -> None:
    """Add a filter's miss, and drop whom it refuses."""
    before = NONE
    if one.of in OF_CARDS:
        had = rest.count
        before = rest.narrow(one, ask)
        short = (rest.count == 0) & (had > 0) if one.empties else rest.count < ask.cards
    else:
        short = _passed_nodes(ask, one, rest) ^ True
    refused = rest.alive & short
    count = int(np.count_nonzero(refused))
    if count:
        found.append(Miss(one, count, rest.first + _nearest(ask, one, refused, before, rest)))
        rest.drop(refused)


def _passed_nodes(ask: Ask, one: Filter, rest: _Rest) -> Any:
    if one.of is Of.NODE:
        return one.fits(ask, rest.nodes)
    kinds = np.array([one.fits(ask, facts) for facts in rest.columns.node_kinds], np.bool_)
    return kinds[rest.columns.node_kind[rest.where]]


def _nearest(ask: Ask, one: Filter, refused: Bools, before: Bools, rest: _Rest) -> int:
    where = refused.nonzero()[0]
    if one.of in OF_CARDS and one.short is None:
        by: Any = -1 * rest.count
    elif one.of in OF_CARDS and one.short is not None:
        failing = before & (rest.left ^ True)
        by = ((np.asarray(one.short(ask, rest.cards), np.int64) - FAR) * failing).min(axis=0)
    elif one.short is not None:
        by = one.short(ask, rest.nodes)
    else:
        return int(where[0])
    return int(where[by[where].argmin()])
