"""Why nodes do not take a shape of task, many at once: each counts for the first filter that refuses it.

Owns counting and finding the nearest miss; its numbers are told by asking that node alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.filters import allow_list, gpu_type, online
from apps.scheduling.policy.lanes import Array, Bools, CardLanes, Columns, NodeLanes, count_cards
from apps.scheduling.policy.registry import OF_CARDS, Filter, Of

# Further off than any miss, in MB or percent.
FAR = 1 << 29


class Miss(NamedTuple):
    """So many nodes refuse with this code; `nearest` is the place of the nearest miss."""

    code: Code
    nodes: int
    nearest: int


class _Rest:
    """The nodes that were not refused yet stand among these, from `first` on; `left`: their cards that were
    not refused."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.first, self.last = 0, columns.count
        self.alive: Bools = np.ones(columns.count, np.bool_)
        self.left: Bools = columns.card_kind > 0
        self.count: Array = count_cards(self.left)
        self._view()

    def _view(self) -> None:
        self.where = slice(self.first, self.last)
        self.nodes, self.cards = NodeLanes(self._columns, self.where), CardLanes(self._columns, self.where)

    def drop(self, refused: Bools) -> None:
        self.alive &= refused ^ True
        rest = np.flatnonzero(self.alive)
        start, stop = (int(rest[0]), int(rest[-1]) + 1) if len(rest) else (0, 0)
        if 2 * (stop - start) < self.last - self.first:
            self.alive, self.left = self.alive[start:stop], self.left[:, start:stop]
            self.count = self.count[start:stop]
            self.first, self.last = self.first + start, self.first + stop
            self._view()


def find_misses(columns: Columns, ask: Ask, filters: Sequence[Filter]) -> tuple[list[Miss], int]:
    """The misses in the order of the filters, and how many nodes take the task."""
    rest = _Rest(columns)
    found = []
    for one in filters:
        if rest.first == rest.last:
            break
        before = rest.left
        if one.of in OF_CARDS:
            passed = _passed_cards(columns, ask, one, rest)
            had = rest.count
            if passed is not None:
                rest.left = before & passed
                rest.count = count_cards(rest.left)
            short = (rest.count == 0) & (had > 0) if one.empties else rest.count < ask.cards
        else:
            short = _passed_nodes(columns, ask, one, rest) ^ True
        refused = rest.alive & short
        if refused.any():
            nearest = rest.first + _nearest(ask, one, refused, before, rest)
            found.append(Miss(one.code(ask), int(refused.sum()), nearest))
            rest.drop(refused)
    return found, int(rest.alive.sum())


def count_offline(columns: Columns, ask: Ask) -> int:
    """How many nodes that the tenant may use have cards of the type; 0 where one of them is online."""
    of_type = [facts is not None and gpu_type.fits(ask, facts) for facts in columns.card_kinds]
    there = np.array(of_type, np.bool_)[columns.card_kind]
    there = count_cards(there) > 0
    kinds = columns.node_kinds
    there &= np.array([allow_list.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
    lives = np.array([online.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
    return 0 if (there & lives).any() else int(there.sum())


def _passed_nodes(columns: Columns, ask: Ask, one: Filter, rest: _Rest) -> Any:
    if one.of is Of.NODE:
        return one.fits(ask, rest.nodes)
    kinds = np.array([one.fits(ask, facts) for facts in columns.node_kinds], np.bool_)
    return kinds[columns.node_kind[rest.where]]


def _passed_cards(columns: Columns, ask: Ask, one: Filter, rest: _Rest) -> Any:
    """None = all do."""
    if one.of is Of.CARD:
        return one.fits(ask, rest.cards)
    if one.of is Of.CARDS:
        return np.array(one.fits(ask, rest.cards.model, rest.left), np.bool_).reshape(rest.left.shape)
    kinds = [facts is None or one.fits(ask, facts) for facts in columns.card_kinds]
    return None if all(kinds) else np.array(kinds, np.bool_)[columns.card_kind[:, rest.where]]


def _nearest(ask: Ask, one: Filter, refused: Bools, before: Bools, rest: _Rest) -> int:
    where = np.flatnonzero(refused)
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
