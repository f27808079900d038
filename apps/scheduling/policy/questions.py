"""What the fleet is asked for one shape of task, and what many nodes answer at once.

Owns the grouped method's first half. Shapes of one form are asked about together where their models lie;
where that does not do, those that differ in their model alone share one answer of all nodes (`Base`), which
is renewed where bookings touched them. One node alone is asked by `Board`, for the reasons why not see
`misses.py`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from apps.scheduling.policy.ask import Ask, several
from apps.scheduling.policy.capacity import MILLION, higher, unrank
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.lanes import Array, Bools, Chosen, count_cards
from apps.scheduling.policy.registry import Filter, Of, Score
from apps.scheduling.policy.stretches import Stretch, gather

# A base keeps so many of its best nodes at hand.
TOP = 32

# Of a stretch of more nodes than LONG only those are asked again that were touched, if they are fewer than
# one of FEW: to gather some costs as much as to ask some hundred in a row.
LONG = 1500
FEW = 8

# (-score without company, place, the node's version then, the cards' places in the node)
Entry = tuple[float, int, int, tuple[int, ...]]
NOWHERE: Array = np.array([], np.int64)
UNASKED = -1  # the version of an entry whose node has to be asked alone


class Answer(NamedTuple):
    """The nodes that take a shape; `all` = there are no others."""

    entries: list[Entry]
    all: bool


class Form:
    """The filters and scores for tasks of one form (`Ask.form`). `located`: scores that know where they are
    not 0. `range`: no node is worth more without those, each score being 1 at the most. `is_near_best`: nodes
    that have one of those outdo all others."""

    __slots__ = (
        "card_filters",
        "cards_filters",
        "heard",
        "is_near_best",
        "located",
        "node_filters",
        "range",
        "scores",
    )

    def __init__(self, ask: Ask, filters: Sequence[Filter], scores: Sequence[tuple[Score, float]]) -> None:
        asked = [one for one in filters if not one.covered]
        self.node_filters = [one.fits for one in asked if one.of is Of.NODE and not one.fixed]
        # The last ones refuse most.
        self.card_filters = [one.fits for one in reversed(asked) if one.of is Of.CARD]
        self.cards_filters = [one.fits for one in asked if one.of is Of.CARDS]
        every = [(one, weight) for one, weight in scores if weight and one.applies(ask)]
        self.heard = [(one, weight) for one, weight in every if one.where is None]
        self.located = [(one, weight) for one, weight in every if one.where is not None]
        self.scores = [(one.measure, weight) for one, weight in self.heard]
        self.range = sum(weight for _, weight in self.heard)
        least = min([weight for _, weight in self.located], default=0.0)
        self.is_near_best = ask.cards == 1 and bool(self.located) and least >= self.range

    def find_fitting(self, ask: Ask, stretch: Stretch) -> tuple[Bools, Array | None]:
        """Which nodes take it, and the rank of the first card of each that fits, 0 = none."""
        ok: Any = True if stretch.nodes_ok is None else stretch.nodes_ok
        for fits in self.node_filters:
            ok = fits(ask, stretch.nodes) & ok
        if not ask.cards:
            return np.array(np.broadcast_to(ok, stretch.nodes.tasks.shape)), None
        left = stretch.cards_ok
        for fits in self.card_filters:
            passed = fits(ask, stretch.cards)
            left = passed if left is None else left & passed
        left = np.ones(stretch.cards.alone.shape, np.bool_) if left is None else left
        for fits in self.cards_filters:
            left = np.array(fits(ask, stretch.cards.model, left), np.bool_)
        best = (stretch.cards.rank * left).max(axis=0)
        enough = best > 0 if ask.cards == 1 else count_cards(left) >= ask.cards
        return enough & ok, best

    def score(self, ask: Ask, stretch: Stretch, best: Array | None, columns: Columns) -> Array:
        """What the nodes are worth, at the most where several cards are to be chosen."""
        chosen = Chosen(0.0, 0.0)
        if best is not None:
            chosen.fullness = unrank(best)[0] / MILLION
        if ask.cards > 1:
            links, roots = (sizes[stretch.where] for sizes in columns.group_sizes())
            chosen.closeness = higher(1.0 * (links >= ask.cards), 0.5 * (roots >= ask.cards))
        total: Any = 0.0
        for measure, weight in self.scores:
            total = total + weight * measure(ask, stretch.nodes, chosen)
        if isinstance(total, np.ndarray):
            return total
        return np.full(stretch.nodes.tasks.shape, total, np.float64)


class Base:
    """Tasks that all filters and the scores but the located ones see alike, and what nodes answer them."""

    __slots__ = (
        "_best",
        "_fitting",
        "_form",
        "_scores",
        "_top",
        "_versions",
        "ask",
        "columns",
        "count",
        "stretch",
        "taken_at",
    )

    def __init__(self, ask: Ask, form: Form, stretch: Stretch, columns: Columns) -> None:
        self.ask = ask
        self.columns = columns
        self._form = form
        self.stretch = stretch
        self.taken_at = (-1, -1)  # bookings and undoings until then
        self._versions: Array | None = None

    def renew(self, at: tuple[int, int]) -> None:
        """Know what all nodes say by now: ask all of them, or of a long stretch those that were touched."""
        if at == self.taken_at:
            return
        self.columns.settle()
        stretch, undone = self.stretch, at[1] != self.taken_at[1]
        self.taken_at = at
        versions: Array = self.columns.versions[stretch.where]
        if self._versions is not None and not undone:
            touched = (versions != self._versions).nonzero()[0]
            if not len(touched):
                return
            if len(touched) * FEW < len(versions) > LONG:
                self._renew(touched)
                return
        self._fitting, self._best = self._form.find_fitting(self.ask, stretch)
        self._scores = self._form.score(self.ask, stretch, self._best, self.columns)
        self._versions = versions.copy()
        self._order()

    def _renew(self, touched: Array) -> None:
        part = self.stretch.part(touched, self.columns)
        fitting, best = self._form.find_fitting(self.ask, part)
        self._fitting[touched] = fitting
        self._scores[touched] = self._form.score(self.ask, part, best, self.columns)
        if self._best is not None:
            self._best[touched] = best
        self._versions = self.columns.versions[self.stretch.where].copy()
        self._order()

    def _order(self) -> None:
        where = self._fitting.nonzero()[0]
        self.count = len(where)
        self._top = self._best_of(where, TOP)

    def top(self, most: int) -> list[Entry]:
        """So many of the best nodes, best first."""
        if most <= TOP or len(self._top) == self.count:
            return self._top[:most]
        return self._best_of(self._fitting.nonzero()[0], most)

    def raised(self, where: Array, more: Array) -> list[Entry]:
        """Entries of these nodes of the stretch, as far as they fit, their scores raised by so much."""
        fitting = self._fitting[where]
        where = where[fitting]
        return self._entries(where, self._scores[where] + more[fitting])

    def _best_of(self, where: Array, most: int) -> list[Entry]:
        scores = self._scores[where]
        if len(where) > most:
            best = np.argpartition(scores, len(where) - most)[len(where) - most :]
            best.sort()  # of equals the first places first
            where, scores = where[best], scores[best]
        order = np.argsort(-scores, kind="stable")
        return self._entries(where[order], scores[order])

    def _entries(self, where: Array, scores: Array) -> list[Entry]:
        return self._list(
            where + self.stretch.first, scores, None if self._best is None else self._best[where]
        )

    def _list(self, places: Array, scores: Array, best: Array | None) -> list[Entry]:
        worth, named = (-scores).tolist(), places.tolist()
        if self.ask.cards != 1 or best is None:
            return [(score, place, UNASKED, ()) for score, place in zip(worth, named, strict=True)]
        versions, slots = self.columns.versions[places].tolist(), unrank(best)[1].tolist()
        return list(zip(worth, named, versions, zip(slots, strict=True), strict=True))


class Question:
    """One shape of task. `stretch` None = no node passes the filters of facts."""

    __slots__ = ("_columns", "ask", "base", "circle", "form", "stretch")

    def __init__(self, ask: Ask, form: Form, stretch: Stretch | None, columns: Columns) -> None:
        self.ask = ask
        self.form = form
        self.stretch = stretch
        self.base: Base | None = None  # where one was needed
        self.circle = columns.circles.of(ask.friends)
        self._columns = columns

    @property
    def rise(self) -> float:
        """By how much a booking of one such task may raise a node's score at most."""
        fewest = self._columns.fewest
        return sum([weight * one.rise(self.ask, fewest) for one, weight in self.form.heard])

    @property
    def is_near_best(self) -> bool:
        """Whether to lie where its model does outweighs all else, so that the others need not be asked."""
        return self.form.is_near_best and self.stretch is not None

    def entries(self, most: int) -> Answer:
        """The nodes that take it as far as the base knows, so many of the best at least; unordered."""
        base = self.base
        if base is None:
            return Answer([], True)
        best = base.top(most)
        everything = len(best) == base.count
        places, more = self._near(base.stretch)
        if not len(places):
            return Answer(best, everything)
        raised = base.raised(places - base.stretch.first, more)
        near = {entry[1] for entry in raised}
        raised += [entry for entry in best if entry[1] not in near]
        return Answer(raised, everything)

    def _near(self, stretch: Stretch) -> tuple[Array, Array]:
        """(Places where located scores add something, how much.)"""
        if len(self.form.located) > 1:
            return locate([self], self._columns)[1:]
        for score, weight in self.form.located:
            if score.where is not None:
                there = score.where(self.ask, self._columns)
                start, stop = np.searchsorted(there, (stretch.first, stretch.last))
                return there[start:stop], np.full(stop - start, weight)
        return NOWHERE, NOWHERE


def locate(questions: Sequence[Question], columns: Columns) -> tuple[Array, Array, Array]:
    """(Which question, place, what located scores add there), wherever they do."""
    there: list[Array] = []
    told: list[tuple[int, float]] = []
    for number, one in enumerate(questions):
        for score, weight in one.form.located:
            if score.where is not None:
                there.append(score.where(one.ask, columns))
                told.append((number, weight))
    if not there:
        return NOWHERE, NOWHERE, np.zeros(0)
    found, counts = np.concatenate(there), [len(places) for places in there]
    owners = np.repeat([number for number, _ in told], counts)
    adds: Array = np.repeat([weight for _, weight in told], counts)
    stretches = [one.stretch for one in questions]
    first = np.array([0 if one is None else one.first for one in stretches])
    last = np.array([0 if one is None else one.last for one in stretches])
    inside = ((found >= first[owners]) & (found < last[owners])).nonzero()[0]
    owners, found, adds = owners[inside], found[inside], adds[inside]
    if any(len(one.form.located) > 1 for one in questions):
        pairs, again = np.unique(owners * columns.count + found, return_inverse=True)
        owners, found = np.divmod(pairs, columns.count)
        adds = np.bincount(again, adds, len(pairs))
    return owners, found, adds


def ask_near(questions: Sequence[Question], most: Sequence[int], columns: Columns) -> list[list[Entry]]:
    """By question, so many of the best nodes by now where its model lies, best first. All are of one form,
    their circles of one word."""
    columns.settle()
    form = questions[0].form
    which, places, more = locate(questions, columns)
    stretches = {id(one.stretch): one.stretch for one in questions if one.stretch is not None}
    number = {name: place for place, name in enumerate(stretches)}
    numbers = np.array([number[id(one.stretch)] for one in questions])
    part = gather(list(stretches.values()), numbers[which], places, columns)
    ask = several([one.ask for one in questions], [one.circle for one in questions], which)
    fitting, best = form.find_fitting(ask, part)
    if best is None:
        raise AssertionError("only tasks of one card are asked about near their model")
    worth = -(form.score(ask, part, best, columns) + more)
    fits = fitting.nonzero()[0]
    order = fits[np.lexsort((worth[fits], which[fits]))]  # of equals the first places first
    begins = np.searchsorted(which[order], np.arange(len(questions) + 1))
    rank_of = np.arange(len(order)) - begins[which[order]]
    order = order[rank_of < np.array(most)[which[order]]]  # the best ones of each
    ends = np.searchsorted(which[order], np.arange(1, len(questions) + 1)).tolist()
    every: list[Entry] = list(
        zip(
            worth[order].tolist(),
            places[order].tolist(),
            columns.versions[places[order]].tolist(),
            zip(unrank(best[order])[1].tolist(), strict=True),
            strict=True,
        )
    )
    return [every[start:end] for start, end in pairwise([0, *ends])]
