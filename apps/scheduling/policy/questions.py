"""What the fleet is asked for one shape of task, and what many nodes answer at once.

Owns the grouped method's first half: shapes that differ in their model alone share one answer (`Base`), which
is renewed where bookings touched its nodes. One node alone is asked by `Board`, for the reasons why not see
`misses.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.capacity import MILLION, higher, unrank
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.lanes import Array, Bools, Chosen, count_cards
from apps.scheduling.policy.registry import Filter, Of, Score
from apps.scheduling.policy.stretches import Stretch

# A base keeps so many of its best nodes at hand.
TOP = 32

# Of a stretch of more nodes than LONG only those are asked again that were touched, if they are fewer than
# one of FEW: to gather some costs as much as to ask some hundred in a row.
LONG = 1500
FEW = 8

# (-score without company, place, the node's version then, the cards' places in the node)
Entry = tuple[float, int, int, tuple[int, ...]]
UNASKED = -1  # the version of an entry whose node has to be asked alone


class Answer(NamedTuple):
    """The nodes that take a shape; `all` = there are no others."""

    entries: list[Entry]
    all: bool


class Base:
    """Tasks that all filters and the scores without the model see alike, and what the nodes answer them."""

    __slots__ = (
        "_best",
        "_columns",
        "_fitting",
        "_scores",
        "_stretch",
        "_top",
        "_versions",
        "ask",
        "card_filters",
        "cards_filters",
        "count",
        "node_filters",
        "scores",
        "taken_at",
    )

    def __init__(
        self,
        ask: Ask,
        columns: Columns,
        stretch: Stretch,
        filters: Sequence[Filter],
        scores: Sequence[tuple[Score, float]],
    ) -> None:
        self.ask = ask
        self._columns = columns
        self._stretch = stretch
        asked = [one for one in filters if not one.covered]
        self.node_filters = [one.fits for one in asked if one.of is Of.NODE and not one.fixed]
        # The last ones refuse most.
        self.card_filters = [one.fits for one in reversed(asked) if one.of is Of.CARD]
        self.cards_filters = [one.fits for one in asked if one.of is Of.CARDS]
        self.scores = [
            (one.measure, weight)
            for one, weight in scores
            if weight and not one.of_model and one.applies(ask)
        ]
        self.taken_at = (-1, -1)  # bookings and undoings until then
        self._versions: Array | None = None

    def renew(self, at: tuple[int, int]) -> None:
        """Know what all nodes say by now: ask all of them, or of a long stretch those that were touched."""
        if at == self.taken_at:
            return
        stretch, undone = self._stretch, at[1] != self.taken_at[1]
        self.taken_at = at
        versions: Array = self._columns.versions[stretch.where]
        if self._versions is not None and not undone:
            touched = np.flatnonzero(versions != self._versions)
            if not len(touched):
                return
            if len(touched) * FEW < len(versions) > LONG:
                self._renew(touched)
                return
        self._fitting, self._best = self._find_fitting(stretch)
        self._scores = self._score(stretch, self._best)
        self._versions = versions.copy()
        self._order()

    def _renew(self, touched: Array) -> None:
        part = self._stretch.part(touched, self._columns)
        fitting, best = self._find_fitting(part)
        self._fitting[touched] = fitting
        self._scores[touched] = self._score(part, best)
        if self._best is not None:
            self._best[touched] = best
        self._versions = self._columns.versions[self._stretch.where].copy()
        self._order()

    def _order(self) -> None:
        where = np.flatnonzero(self._fitting)
        self.count = len(where)
        self._top = self._best_of(where, TOP)

    def top(self, most: int) -> list[Entry]:
        """So many of the best nodes, best first."""
        if most <= TOP or len(self._top) == self.count:
            return self._top[:most]
        return self._best_of(np.flatnonzero(self._fitting), most)

    def with_more(self, more: Array) -> list[Entry]:
        """Entries of the nodes whose score rises (by so much, by node of the stretch), as far as they fit."""
        where = np.flatnonzero(more)
        where = where[self._fitting[where]]
        return self._entries(where, self._scores[where] + more[where])

    def _best_of(self, where: Array, most: int) -> list[Entry]:
        scores = self._scores[where]
        if len(where) > most:
            best = np.argpartition(scores, len(where) - most)[len(where) - most :]
            best.sort()  # of equals the first places first
            where, scores = where[best], scores[best]
        order = np.argsort(-scores, kind="stable")
        return self._entries(where[order], scores[order])

    def _entries(self, where: Array, scores: Array) -> list[Entry]:
        places = (where + self._stretch.first).tolist()
        if self.ask.cards != 1 or self._best is None:
            every_one = zip((-scores).tolist(), places, strict=True)
            return [(score, place, UNASKED, ()) for score, place in every_one]
        slots = unrank(self._best[where])[1].tolist()
        versions = self._columns.versions[where + self._stretch.first].tolist()
        every = zip((-scores).tolist(), places, versions, slots, strict=True)
        return [(score, place, version, (slot,)) for score, place, version, slot in every]

    def _find_fitting(self, stretch: Stretch) -> tuple[Bools, Array | None]:
        """Which nodes take it, and the rank of the first card of each that fits, 0 = none."""
        ask = self.ask
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

    def _score(self, stretch: Stretch, best: Array | None) -> Array:
        """What the nodes are worth, at the most where several cards are to be chosen."""
        ask = self.ask
        chosen = Chosen(0.0, 0.0)
        if best is not None:
            chosen.fullness = unrank(best)[0] / MILLION
        if ask.cards > 1:
            links, roots = (sizes[stretch.where] for sizes in self._columns.group_sizes())
            chosen.closeness = higher(1.0 * (links >= ask.cards), 0.5 * (roots >= ask.cards))
        total: Any = 0.0
        for measure, weight in self.scores:
            total = total + weight * measure(ask, stretch.nodes, chosen)
        return np.array(np.broadcast_to(total, stretch.nodes.tasks.shape), np.float64)


class Question:
    """One shape of task. `base` None = no node passes the filters of facts."""

    __slots__ = ("ask", "base", "model_scores", "stretch")

    def __init__(
        self, ask: Ask, stretch: Stretch | None, base: Base | None, model_scores: Sequence[tuple[Any, float]]
    ) -> None:
        self.ask = ask
        self.stretch = stretch
        self.base = base
        self.model_scores = model_scores

    def entries(self, most: int) -> Answer:
        """The nodes that take it as far as the base knows, so many of the best at least; unordered."""
        base, stretch = self.base, self.stretch
        if base is None or stretch is None:
            return Answer([], True)
        best = base.top(most)
        everything = len(best) == base.count
        more: Any = 0.0
        for measure, weight in self.model_scores:
            more = more + weight * measure(self.ask, stretch.nodes, None)
        if not isinstance(more, np.ndarray):
            return Answer(best, everything)
        raised = base.with_more(more)
        places = {entry[1] for entry in raised}
        raised += [entry for entry in best if entry[1] not in places]
        return Answer(raised, everything)
