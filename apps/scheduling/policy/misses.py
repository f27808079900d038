"""Why nodes do not take a shape of task, many at once: each counts for the first filter that refuses it.

Owns counting and finding the nearest miss; its numbers are told by asking that node alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.filters import allow_list, gpu_type, online
from apps.scheduling.policy.lanes import Array, Bools, CardLanes, NodeLanes, count_cards
from apps.scheduling.policy.registry import OF_CARDS, Filter, Of, no_numbers

# Further off than any miss, in MB or percent.
FAR = 1 << 29


class Miss(NamedTuple):
    """So many nodes refuse with this code; `nearest` is the place of the nearest miss, `numbers`: it has some
    to tell."""

    code: Code
    nodes: int
    nearest: int
    numbers: bool


class _Rest:
    """The nodes that were not refused yet stand among these, from `first` on; `kinds` of their cards pass the
    filters of facts, and `left` were not refused by others either, `count` by node."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.first, self.last = 0, columns.count
        self.alive: Bools = np.ones(columns.count, np.bool_)
        self.kinds: Bools = np.array([facts is not None for facts in columns.card_kinds], np.bool_)
        self._left: Bools | None = None
        self.count: Array = columns.kind_counts()[self.kinds].sum(axis=0)
        self._view()

    @property
    def left(self) -> Bools:
        """Cards that were not refused."""
        if self._left is None:
            self._left = self.kinds[self.columns.card_kind[:, self.where]]
        return self._left

    def narrow(self, one: Filter, ask: Ask) -> Bools:
        """Ask of the cards; answers which were left before."""
        if one.of is Of.CARD_FACTS:
            passed = [facts is None or one.fits(ask, facts) for facts in self.columns.card_kinds]
            if all(passed):
                return self.left if one.short is not None else NONE
            before = self.left if one.short is not None else NONE
            self.kinds = self.kinds & np.array(passed, np.bool_)
            self.count = self.columns.kind_counts()[self.kinds, self.where].sum(axis=0)
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


NONE: Bools = np.array([], np.bool_)


def find_misses(columns: Columns, ask: Ask, filters: Sequence[Filter]) -> tuple[list[Miss], int]:
    """The misses in the order of the filters, and how many nodes take the task."""
    rest = _Rest(columns)
    found = []
    for one in filters:
        if rest.first == rest.last:
            break
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
            nearest = rest.first + _nearest(ask, one, refused, before, rest)
            found.append(Miss(one.code(ask), count, nearest, one.tell is not no_numbers))
            rest.drop(refused)
    return found, int(np.count_nonzero(rest.alive))


def count_offline(columns: Columns, ask: Ask) -> int:
    """How many nodes that the tenant may use have cards of the type; 0 where one of them is online."""
    of_type = [facts is not None and gpu_type.fits(ask, facts) for facts in columns.card_kinds]
    there = columns.kind_counts()[of_type].any(axis=0)
    kinds = columns.node_kinds
    there &= np.array([allow_list.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
    lives = np.array([online.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
    return 0 if (there & lives).any() else int(np.count_nonzero(there))


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
