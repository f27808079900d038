"""The nodes that pass the filters of facts, once for all shapes of which those read the same.

Owns the facts' part of a question. Since nodes stand in the order of their cards' models, those that a shape
may go to are mostly one stretch in which all are meant.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.columns import Columns
from apps.scheduling.policy.lanes import Array, Bools, CardLanes, NodeLanes
from apps.scheduling.policy.registry import Filter, Of

Passing = tuple[bool, ...]  # by kind of facts


@dataclass(slots=True, eq=False)
class Stretch:
    """Nodes in a row; `nodes_ok` and `cards_ok` tell the exceptions among them, None = there are none."""

    where: Any  # a slice of all nodes, or the places of a part of it
    first: int
    last: int  # the first one that is not of it
    nodes: NodeLanes
    cards: CardLanes
    nodes_ok: Bools | None
    cards_ok: Bools | None

    def part(self, some: Array, columns: Columns) -> "Stretch":
        """Some of its nodes, counted from its first, by themselves."""
        where = some + self.first
        nodes_ok = None if self.nodes_ok is None else self.nodes_ok[some]
        cards_ok = None if self.cards_ok is None else self.cards_ok[:, some]
        nodes, cards = NodeLanes(columns, where), CardLanes(columns, where)
        return Stretch(where, self.first, self.last, nodes, cards, nodes_ok, cards_ok)

    def places(self) -> list[int]:
        """Places of the nodes that pass."""
        if self.nodes_ok is None:
            return list(range(self.first, self.last))
        return [int(place) for place in self.nodes_ok.nonzero()[0] + self.first]

    def has(self, place: int) -> bool:
        """Whether the node passes."""
        if not self.first <= place < self.last:
            return False
        return self.nodes_ok is None or bool(self.nodes_ok[place - self.first])

    def slots(self, place: int) -> list[bool] | None:
        """Which cards of a node that passes do, None = all."""
        if self.cards_ok is None:
            return None
        slots: list[bool] = self.cards_ok[:, place - self.first].tolist()
        return slots


def gather(stretches: Sequence[Stretch], which: Array, places: Array, columns: Columns) -> Stretch:
    """These nodes by themselves, each as one of the stretch whose number stands in `which`."""
    nodes_ok: Bools = np.ones(len(places), np.bool_)
    cards_ok: Bools | None = None
    for number, stretch in enumerate(stretches):
        if stretch.nodes_ok is None and stretch.cards_ok is None:
            continue
        lanes = (which == number).nonzero()[0]
        some = places[lanes] - stretch.first
        if stretch.nodes_ok is not None:
            nodes_ok[lanes] = stretch.nodes_ok[some]
        if stretch.cards_ok is not None:
            if cards_ok is None:
                cards_ok = np.ones((columns.width, len(places)), np.bool_)
            cards_ok[:, lanes] = stretch.cards_ok[:, some]
    nodes, cards = NodeLanes(columns, places), CardLanes(columns, places)
    return Stretch(places, 0, columns.count, nodes, cards, nodes_ok, cards_ok)


class Stretches:
    """Finds stretches; `filters_of(ask)` are those that apply to a task."""

    def __init__(self, columns: Columns, filters_of: Callable[[Ask], Sequence[Filter]]) -> None:
        self._columns = columns
        self._filters_of = filters_of
        self._fixed: Bools | None = None
        self._of_nodes: dict[Hashable, Passing] = {}
        self._of_cards: dict[Hashable, Passing] = {}
        self._known: dict[tuple[Passing, Passing], Stretch | None] = {}

    def find(self, ask: Ask) -> Stretch | None:
        """None where no node passes."""
        nodes = self._of_nodes.get(ask.node_key)
        if nodes is None:
            nodes = self._of_nodes[ask.node_key] = self._passing_nodes(ask)
        cards: Passing = ()
        if ask.cards:
            known = self._of_cards.get(ask.card_key)
            cards = self._passing_cards(ask) if known is None else known
            self._of_cards[ask.card_key] = cards
        key = (nodes, cards)
        if key not in self._known:
            self._known[key] = self._build(nodes, cards, self._fixed_ok(ask))
        return self._known[key]

    def _passing_nodes(self, ask: Ask) -> Passing:
        asked = [one.fits for one in self._filters_of(ask) if one.of is Of.NODE_FACTS]
        return tuple([all(fits(ask, facts) for fits in asked) for facts in self._columns.node_kinds])

    def _passing_cards(self, ask: Ask) -> Passing:
        asked = [one.fits for one in self._filters_of(ask) if one.of is Of.CARD_FACTS]
        kinds = self._columns.card_kinds
        return tuple([one is not None and all(fits(ask, one) for fits in asked) for one in kinds])

    def _fixed_ok(self, ask: Ask) -> Bools:
        """By the filters that depend on no task."""
        if self._fixed is None:
            self._fixed = np.ones(self._columns.count, np.bool_)
            every = NodeLanes(self._columns, slice(None))
            for one in self._filters_of(ask):
                if one.fixed:
                    self._fixed &= one.fits(ask, every)
        return self._fixed

    def _build(self, nodes: Passing, cards: Passing, fixed: Bools) -> Stretch | None:
        columns = self._columns
        nodes_ok: Bools = np.array(nodes, np.bool_)[columns.node_kind] & fixed
        cards_ok: Bools | None = None
        if cards:
            cards_ok = np.array(cards, np.bool_)[columns.card_kind]
            nodes_ok &= cards_ok.any(axis=0)
        places = nodes_ok.nonzero()[0]
        if not len(places):
            return None
        where = slice(int(places[0]), int(places[-1]) + 1)
        if cards_ok is not None:
            cards_ok = cards_ok[:, where]
            nowhere = columns.card_kind[:, where] == 0
            cards_ok = None if (cards_ok | nowhere).all() else cards_ok
        return Stretch(
            where,
            where.start,
            where.stop,
            NodeLanes(columns, where),
            CardLanes(columns, where),
            None if len(places) == where.stop - where.start else nodes_ok[where],
            cards_ok,
        )
