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
NOWHERE: Array = np.array([], np.int64)
UNASKED = -1  # the version of an entry whose node has to be asked alone


class Answer(NamedTuple):
    """The nodes that take a shape; `all` = there are no others."""

    entries: list[Entry]
    all: bool


class Base:
    """Tasks that all filters and the scores without the model see alike, and what the nodes answer them."""

    __slots__ = (
        "_best",
        "_fitting",
        "_scores",
        "_stretch",
        "_top",
        "_versions",
        "ask",
        "card_filters",
        "cards_filters",
        "columns",
        "count",
        "node_filters",
        "range",
        "rise",
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
        self.columns = columns
        self._stretch = stretch
        asked = [one for one in filters if not one.covered]
        self.node_filters = [one.fits for one in asked if one.of is Of.NODE and not one.fixed]
        # The last ones refuse most.
        self.card_filters = [one.fits for one in reversed(asked) if one.of is Of.CARD]
        self.cards_filters = [one.fits for one in asked if one.of is Of.CARDS]
        heard = [(one, weight) for one, weight in scores if weight and one.where is None and one.applies(ask)]
        self.scores = [(one.measure, weight) for one, weight in heard]
        self.rise = sum(weight * one.rise(ask) for one, weight in heard)
        self.range = sum(weight for _, weight in self.scores)  # no node is worth more, each score at most 1
        self.taken_at = (-1, -1)  # bookings and undoings until then
        self._versions: Array | None = None

    def renew(self, at: tuple[int, int]) -> None:
        """Know what all nodes say by now: ask all of them, or of a long stretch those that were touched."""
        if at == self.taken_at:
            return
        stretch, undone = self._stretch, at[1] != self.taken_at[1]
        self.taken_at = at
        versions: Array = self.columns.versions[stretch.where]
        if self._versions is not None and not undone:
            touched = (versions != self._versions).nonzero()[0]
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
        part = self._stretch.part(touched, self.columns)
        fitting, best = self._find_fitting(part)
        self._fitting[touched] = fitting
        self._scores[touched] = self._score(part, best)
        if self._best is not None:
            self._best[touched] = best
        self._versions = self.columns.versions[self._stretch.where].copy()
        self._order()

    def _order(self) -> None:
        where = self._fitting.nonzero()[0]
        self.count = len(where)
        self._top = self._best_of(where, TOP)

    def entries_of(self, part: Stretch, more: Array) -> list[Entry]:
        """Entries of a part of the stretch, asked now, whose scores are raised by `more`."""
        fitting, best = self._find_fitting(part)
        scores = self._score(part, best) + more
        where = fitting.nonzero()[0]
        return self._list(part.where[where], scores[where], None if best is None else best[where])

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
            where + self._stretch.first, scores, None if self._best is None else self._best[where]
        )

    def _list(self, places: Array, scores: Array, best: Array | None) -> list[Entry]:
        worth, named = (-scores).tolist(), places.tolist()
        if self.ask.cards != 1 or best is None:
            return [(score, place, UNASKED, ()) for score, place in zip(worth, named, strict=True)]
        every = zip(
            worth, named, self.columns.versions[places].tolist(), unrank(best)[1].tolist(), strict=True
        )
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
            links, roots = (sizes[stretch.where] for sizes in self.columns.group_sizes())
            chosen.closeness = higher(1.0 * (links >= ask.cards), 0.5 * (roots >= ask.cards))
        total: Any = 0.0
        for measure, weight in self.scores:
            total = total + weight * measure(ask, stretch.nodes, chosen)
        if isinstance(total, np.ndarray):
            return total
        return np.full(stretch.nodes.tasks.shape, total, np.float64)


class Question:
    """One shape of task. `base` None = no node passes the filters of facts."""

    __slots__ = ("_model_at", "ask", "base", "model_scores", "stretch")

    def __init__(
        self,
        ask: Ask,
        stretch: Stretch | None,
        base: Base | None,
        model_scores: Sequence[tuple[Score, float]],
    ) -> None:
        self.ask = ask
        self.stretch = stretch
        self.base = base
        self.model_scores = model_scores
        self._model_at = NOWHERE  # nodes of the stretch
        for score, _ in model_scores:
            if base is None or stretch is None or score.where is None:
                continue
            there = score.where(ask, base.columns)
            there = there[(there >= stretch.first) & (there < stretch.last)] - stretch.first
            self._model_at = np.union1d(self._model_at, there) if len(self._model_at) else there

    def with_model(self, most: int) -> list[Entry]:
        """The nodes that take it by now and where its model lies, if so many do and lying there outweighs all
        else: then they are the best ones, and the others need not be asked. Else none."""
        base = self.base
        if base is None or len(self._model_at) < most:
            return []
        part, more = self._model()
        if more.min() < base.range:
            return []
        entries = base.entries_of(part, more)
        return entries if len(entries) >= most else []

    def entries(self, most: int) -> Answer:
        """The nodes that take it as far as the base knows, so many of the best at least; unordered."""
        base = self.base
        if base is None:
            return Answer([], True)
        best = base.top(most)
        everything = len(best) == base.count
        if not len(self._model_at):
            return Answer(best, everything)
        raised = base.raised(self._model_at, self._model()[1])
        places = {entry[1] for entry in raised}
        raised += [entry for entry in best if entry[1] not in places]
        return Answer(raised, everything)

    def _model(self) -> tuple[Stretch, Array]:
        """The nodes where the model lies, and by how much that raises their scores."""
        if self.base is None or self.stretch is None:
            raise AssertionError("no node passes the filters of facts")
        part = self.stretch.part(self._model_at, self.base.columns)
        more: Any = 0.0
        for score, weight in self.model_scores:
            more = more + weight * score.measure(self.ask, part.nodes, None)
        return part, more
