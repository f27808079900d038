"""What the fleet is asked for one shape of task: its filters and scores, and the nodes in question.

Owns asking facts once, and asking many nodes at once. One node alone is asked by `Board`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.capacity import MILLION, higher
from apps.scheduling.policy.filters import allow_list, gpu_type, online
from apps.scheduling.policy.lanes import Array, Bools, CardLanes, Chosen, Columns, NodeLanes
from apps.scheduling.policy.registry import Filter, Of, Score
from apps.scheduling.policy.rooms import CardRoom

_OF_CARDS = (Of.CARD_FACTS, Of.CARD, Of.CARDS)


@dataclass(slots=True)
class Stretch:
    """Nodes in a row that passed the filters of facts; `nodes_ok` and `cards_ok` tell the exceptions among
    them, None = there are none."""

    first: int
    nodes: NodeLanes
    cards: CardLanes
    nodes_ok: Bools | None
    cards_ok: Bools | None


class Fits(NamedTuple):
    """Nodes that take a shape: places, scores without regard to company, and of one card its place in the
    node (-1 = to be asked)."""

    places: list[int]
    scores: list[float]
    slots: list[int]


class Miss(NamedTuple):
    """So many nodes refuse with this code; `nearest` is the place of the nearest miss."""

    code: Code
    nodes: int
    nearest: int


class Stretches:
    """Finds the nodes that pass the filters of facts, once for all shapes of which those read the same."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._fixed: Bools | None = None
        self._of_nodes: dict[Hashable, tuple[bool, ...]] = {}
        self._of_cards: dict[Hashable, tuple[bool, ...]] = {}
        self._known: dict[tuple[tuple[bool, ...], tuple[bool, ...]], Stretch | None] = {}

    def find(self, ask: Ask, filters: Sequence[Filter]) -> Stretch | None:
        """None where no node passes."""
        columns = self._columns
        if self._fixed is None:
            self._fixed = np.ones(columns.count, np.bool_)
            every = NodeLanes(columns, slice(None))
            for one in filters:
                if one.fixed:
                    self._fixed &= one.fits(ask, every)
        nodes = self._of_nodes.get(ask.node_key)
        if nodes is None:
            asked = [one.fits for one in filters if one.of is Of.NODE_FACTS]
            nodes = tuple([all([fits(ask, facts) for fits in asked]) for facts in columns.node_kinds])
            self._of_nodes[ask.node_key] = nodes
        cards: tuple[bool, ...] = ()
        if ask.cards:
            cards = self._of_cards.get(ask.card_key, ())
            if not cards:
                asked = [one.fits for one in filters if one.of is Of.CARD_FACTS]
                kinds = columns.card_kinds
                cards = tuple([one is not None and all([fits(ask, one) for fits in asked]) for one in kinds])
                self._of_cards[ask.card_key] = cards
        if (nodes, cards) not in self._known:
            self._known[nodes, cards] = self._build(nodes, cards, self._fixed)
        return self._known[nodes, cards]

    def _build(self, nodes: tuple[bool, ...], cards: tuple[bool, ...], fixed: Bools) -> Stretch | None:
        columns = self._columns
        nodes_ok: Bools = np.array(nodes, np.bool_)[columns.node_kind] & fixed
        cards_ok: Bools | None = None
        if cards:
            cards_ok = np.array(cards, np.bool_)[columns.card_kind]
            nodes_ok &= cards_ok.any(axis=0)
        places = np.flatnonzero(nodes_ok)
        if not len(places):
            return None
        where = slice(int(places[0]), int(places[-1]) + 1)
        if cards_ok is not None:
            cards_ok = cards_ok[:, where]
            there = columns.card_kind[:, where] > 0
            cards_ok = None if (cards_ok | (there ^ True)).all() else cards_ok
        return Stretch(
            where.start,
            NodeLanes(columns, where),
            CardLanes(columns, where),
            None if len(places) == where.stop - where.start else nodes_ok[where],
            cards_ok,
        )


class Question:
    """One shape of task and all that is asked for it."""

    __slots__ = (
        "_columns",
        "_stretch",
        "ask",
        "card_filters",
        "cards_filters",
        "filters",
        "node_filters",
        "scores",
    )

    def __init__(
        self,
        ask: Ask,
        columns: Columns,
        filters: Sequence[Filter],
        scores: Sequence[tuple[Score, float]],
        stretches: "Stretches",
    ) -> None:
        self.ask = ask
        self._columns = columns
        self.filters = [one for one in filters if (ask.cards or one.of not in _OF_CARDS) and one.applies(ask)]
        asked = [one for one in self.filters if not one.covered]
        self.node_filters = [one.fits for one in asked if one.of is Of.NODE and not one.fixed]
        # The last ones refuse most.
        self.card_filters = [one.fits for one in reversed(asked) if one.of is Of.CARD]
        self.cards_filters = [one.fits for one in asked if one.of is Of.CARDS]
        self.scores = [(one.measure, weight) for one, weight in scores if weight and one.applies(ask)]
        self._stretch = stretches.find(ask, asked)

    # --- facts

    def possible(self) -> list[int]:
        """Places of the nodes that pass the filters of facts."""
        stretch = self._stretch
        if stretch is None:
            return []
        if stretch.nodes_ok is None:
            return list(range(stretch.first, stretch.first + len(stretch.nodes.tasks)))
        return (np.flatnonzero(stretch.nodes_ok) + stretch.first).tolist()

    def is_possible(self, place: int) -> bool:
        """Whether one passes them."""
        stretch = self._stretch
        if stretch is None or not 0 <= place - stretch.first < len(stretch.nodes.tasks):
            return False
        return stretch.nodes_ok is None or bool(stretch.nodes_ok[place - stretch.first])

    def passing_facts(self, place: int, cards: list[CardRoom]) -> list[CardRoom]:
        """Those of a node's cards that pass them; for a node that does."""
        stretch = self._stretch
        if stretch is None or stretch.cards_ok is None:
            return cards
        ok = stretch.cards_ok[:, place - stretch.first].tolist()
        return [card for card in cards if ok[card.slot]]

    # --- many nodes

    def find(self, most: int) -> Fits:
        """The nodes that take it by now, at most so many of the best."""
        stretch = self._stretch
        if stretch is None:
            return Fits([], [], [])
        fitting, fullness, fullest = self._fitting(stretch)
        scores = self._scores(stretch, fullest)
        where = np.flatnonzero(fitting)
        rated = scores[where] if isinstance(scores, np.ndarray) else np.full(len(where), scores)
        if len(where) > most:
            best = np.argpartition(-rated, most - 1)[:most]
            where, rated = where[best], rated[best]
        if self.ask.cards == 1 and fullness is not None:
            slots = fullness[:, where].argmax(axis=0).tolist()
        else:
            slots = [-1] * len(where)
        return Fits((where + stretch.first).tolist(), rated.tolist(), slots)

    def _fitting(self, stretch: Stretch) -> tuple[Bools, Array | None, Array | None]:
        """Which nodes take it; the fullness of the cards that fit, -1 of others; that of the fullest."""
        ask = self.ask
        ok: Any = True if stretch.nodes_ok is None else stretch.nodes_ok
        for fits in self.node_filters:
            ok = fits(ask, stretch.nodes) & ok
        if not ask.cards:
            return np.broadcast_to(ok, stretch.nodes.tasks.shape), None, None
        left = self._left(stretch)
        fullness = np.where(left, stretch.cards.fullness, -1)
        fullest = fullness.max(axis=0)
        enough = fullest >= 0 if ask.cards == 1 else left.sum(axis=0, dtype=np.int16) >= ask.cards
        return enough & ok, fullness, fullest

    def _left(self, stretch: Stretch) -> Bools:
        ask, cards = self.ask, stretch.cards
        left = stretch.cards_ok
        for fits in self.card_filters:
            passed = fits(ask, cards)
            left = passed if left is None else left & passed
        if left is None:
            left = np.ones(cards.alone.shape, np.bool_)
        for fits in self.cards_filters:
            left = np.array(fits(ask, cards.model, left))
        return left

    def _scores(self, stretch: Stretch, fullest: Array | None) -> Any:
        ask, nodes = self.ask, stretch.nodes
        if fullest is None:
            chosen = Chosen(0.0, 0.0)
        else:
            closeness: Any = 0.0
            if ask.cards > 1:
                closeness = higher(1.0 * (nodes.link_size >= ask.cards), 0.5 * (nodes.root_size >= ask.cards))
            chosen = Chosen(fullest / MILLION, closeness)
        return sum((weight * measure(ask, nodes, chosen) for measure, weight in self.scores), 0.0)

    # --- why not

    def offline_of_type(self) -> int:
        """How many nodes that the tenant may use have cards of the type; 0 where one of them is online."""
        columns, ask = self._columns, self.ask
        of_type = [facts is not None and gpu_type.fits(ask, facts) for facts in columns.card_kinds]
        there = np.array(of_type, np.bool_)[columns.card_kind].any(axis=0)
        kinds = columns.node_kinds
        allowed = np.array([allow_list.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
        is_online = np.array([online.fits(ask, facts) for facts in kinds], np.bool_)[columns.node_kind]
        there &= allowed
        return 0 if (there & is_online).any() else int(there.sum())

    def misses(self) -> tuple[list[Miss], int]:
        """Why nodes do not take it, each counted for the first filter that refuses it; and how many do."""
        columns, ask = self._columns, self.ask
        first, last = 0, columns.count  # those not refused yet stand between
        alive: Bools = np.ones(columns.count, np.bool_)
        left: Bools = columns.card_kind > 0
        nodes, cards = NodeLanes(columns, slice(None)), CardLanes(columns, slice(None))
        found = []
        for one in self.filters:
            before = left
            if one.of not in _OF_CARDS:
                refused = alive & (self._passed_nodes(one, nodes, slice(first, last)) ^ True)
            else:
                passed = self._passed_cards(one, cards, before, slice(first, last))
                left = before if passed is None else before & passed
                count = left.sum(axis=0, dtype=np.int16)
                if one.empties:
                    refused = alive & (count == 0) & before.any(axis=0)
                else:
                    refused = alive & (count < ask.cards)
            if not refused.any():
                continue
            nearest = self._nearest(one, refused, before, left, nodes, cards)
            found.append(Miss(one.code(ask), int(refused.sum()), first + nearest))
            alive &= refused ^ True
            rest = np.flatnonzero(alive)
            if not len(rest):
                return found, 0
            start, stop = int(rest[0]), int(rest[-1]) + 1
            if 2 * (stop - start) < last - first:
                alive, left = alive[start:stop], left[:, start:stop]
                first, last = first + start, first + stop
                nodes, cards = (
                    NodeLanes(columns, slice(first, last)),
                    CardLanes(columns, slice(first, last)),
                )
        return found, int(alive.sum())

    def _passed_nodes(self, one: Filter, nodes: NodeLanes, where: slice) -> Any:
        if one.of is Of.NODE:
            return one.fits(self.ask, nodes)
        kinds = np.array([one.fits(self.ask, facts) for facts in self._columns.node_kinds], np.bool_)
        return kinds[self._columns.node_kind[where]]

    def _passed_cards(self, one: Filter, cards: CardLanes, left: Bools, where: slice) -> Any:
        """None = all pass."""
        if one.of is Of.CARD:
            return one.fits(self.ask, cards)
        if one.of is Of.CARDS:
            return np.array(one.fits(self.ask, cards.model, left), np.bool_).reshape(left.shape)
        kinds = [facts is None or one.fits(self.ask, facts) for facts in self._columns.card_kinds]
        return None if all(kinds) else np.array(kinds, np.bool_)[self._columns.card_kind[:, where]]

    def _nearest(
        self, one: Filter, refused: Bools, before: Bools, left: Bools, nodes: NodeLanes, cards: CardLanes
    ) -> int:
        if one.short is None:
            by: Any = 0.0 if one.of not in _OF_CARDS else -left.sum(axis=0, dtype=np.int32)
        elif one.of in _OF_CARDS:
            by = np.where(before & (left ^ True), one.short(self.ask, cards), 1 << 30).min(axis=0)
        else:
            by = one.short(self.ask, nodes)
        return int(np.where(refused, by, np.inf).argmin())
