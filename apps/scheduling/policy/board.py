"""Asking about the working copy: one node about one task, and which nodes take it.

Owns nothing but that; booking is `Bookings`'. Never chooses a task or a node.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask, ShapeKey, shape_of
from apps.scheduling.policy.bookings import NOBODY, Bookings
from apps.scheduling.policy.capacity import MILLION, unrank
from apps.scheduling.policy.choice import choose
from apps.scheduling.policy.lanes import CardLanes, Chosen, NodeLanes
from apps.scheduling.policy.questions import Answer, Base, Question
from apps.scheduling.policy.registry import (
    OF_CARDS,
    Filter,
    Of,
    Refused,
    load_companies,
    load_filters,
    load_scores,
)
from apps.scheduling.policy.rooms import CardRoom, NodeRoom, as_one
from apps.scheduling.policy.snapshot import Snapshot, TaskView
from apps.scheduling.policy.stretches import Stretch, Stretches

# Answers of so many kinds of task are kept; each takes some ten bytes a node.
BASES = 512

Fit = tuple[float, tuple[int, ...]]  # (-score without company, the cards' slots)

NO_CARDS = Chosen(0.0, 0.0)


class Board(Bookings):
    """The working copy with the plugins that judge it."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        weights = snapshot.weights
        self._filters = load_filters()
        self._scores = [(score, weights.get(score.name, 1.0)) for score in load_scores()]
        companies = [(company, weights.get(company.name, 1.0)) for company in load_companies()]
        self._companies = [(one.measure, weight) for one, weight in companies if weight and not one.gang]
        self._gang_companies = [(one.measure, weight) for one, weight in companies if weight]
        self._questions: dict[ShapeKey, Question] = {}
        self._stretches = Stretches(self.columns, self.filters_of)
        self._in_company: dict[tuple[int, int], tuple[int, float]] = {}  # (version, score) by place and group
        self._bases: dict[object, Base] = {}

    def filters_of(self, ask: Ask) -> list[Filter]:
        """Those that apply to the task, in the order in which they are asked."""
        return [one for one in self._filters if (ask.cards or one.of not in OF_CARDS) and one.applies(ask)]

    def question(self, task: TaskView) -> Question:
        """What is asked for tasks of this shape."""
        key = shape_of(task)
        found = self._questions.get(key)
        if found is None:
            ask = Ask(task, self.snapshot)
            stretch = self._stretches.find(ask)
            own = [
                (score, weight)
                for score, weight in self._scores
                if score.where is not None and weight and score.applies(ask)
            ]
            base = None if stretch is None else self._base(ask, stretch)
            found = self._questions[key] = Question(ask, stretch, base, own)
        return found

    def _base(self, ask: Ask, stretch: Stretch) -> Base:
        key = (ask.base_key, id(stretch))
        found = self._bases.get(key)
        if found is None:
            if len(self._bases) >= BASES:
                self._bases.clear()  # questions that were asked keep theirs
            found = Base(ask, self.columns, stretch, self.filters_of(ask), self._scores)
            self._bases[key] = found
        return found

    # --- one node

    def judge(
        self,
        task: TaskView,
        place: int,
        without: Collection[int] = NOBODY,
        *,
        lent: Collection[int] = NOBODY,
    ) -> "tuple[int, ...] | Refused":
        """The cards (row ids) that the task would get there by now, or the first check that refuses it.

        `without`: row ids of tasks whose holds are thought away. Room kept for the task itself counts as
        nothing, room kept for others as theirs. `lent`: sleepers whose cards it would borrow; their tenants
        stay on the card for the red line (SHARE-05), and what they use there stays in use.
        """
        if lent and self._crosses_the_line(task, place, lent):
            return Refused(Code.RED_LINE)
        found = self._judge_room(self.question(task).ask, self.room_for(task, place, without, lent))
        return found if isinstance(found, Refused) else tuple(card.view.id for card in found)

    def refusal(self, task: TaskView, place: int) -> Refused | None:
        """Why the node as it is does not take the task, room that is kept for the task itself included."""
        found = self._judge_room(self.question(task).ask, self.room(place))
        return found if isinstance(found, Refused) else None

    def fit(self, question: Question, task: TaskView, place: int) -> Fit | None:
        """What a node that passed the filters of facts is worth; None where it refuses."""
        base, stretch, ask = question.base, question.stretch, question.ask
        if base is None or stretch is None:
            return None
        if task.id in self._kept:
            return self._fit_room(question, base, self.room_for(task, place))
        node = NodeLanes(self.columns, place)
        for fits in base.node_filters:
            if not fits(ask, node):
                return None
        if not ask.cards:
            return self._worth(question, base, node, NO_CARDS), ()
        cards = CardLanes(self.columns, place)
        left: Any = None if stretch.cards_ok is None else stretch.cards_ok[:, place - stretch.first]
        for fits in base.card_filters:
            passed = fits(ask, cards)
            left = passed if left is None else left & passed
        if ask.cards == 1:
            best = int((cards.rank * left).max())
            if not best:
                return None
            fullness, slot = unrank(best)
            return self._worth(question, base, node, Chosen(fullness / MILLION, 0.0)), (slot,)
        for fits in base.cards_filters:
            left = np.array(fits(ask, cards.model, left), np.bool_)
        slots = left.nonzero()[0].tolist()
        if len(slots) < ask.cards:
            return None
        room = self.room(place)
        chosen = choose(ask.cards, [room.card(slot) for slot in slots])
        return self._worth(question, base, node, as_one(chosen)), tuple([card.slot for card in chosen])

    def _fit_room(self, question: Question, base: Base, room: NodeRoom) -> Fit | None:
        """Of a node where something is thought away."""
        found = self._judge_room(question.ask, room)
        if isinstance(found, Refused):
            return None
        return self._worth(question, base, room, as_one(found)), tuple([card.slot for card in found])

    def _worth(self, question: Question, base: Base, node: Any, chosen: Chosen) -> float:
        """Its score with the sign turned: less is better."""
        ask, total, more = question.ask, 0.0, 0.0
        for measure, weight in base.scores:
            total = total + weight * measure(ask, node, chosen)
        for score, weight in question.model_scores:
            more = more + weight * score.measure(ask, node, chosen)
        return -float(total + more)

    def company(self, task: TaskView, place: int) -> float:
        """What the company of its group takes off the score there; 0 where it has none."""
        group = task.group_id
        if (place, group) not in self.columns.siblings and group not in self.nodes[place].siblings:
            return 0.0
        known = self._in_company.get((place, group))
        if known is None or known[0] != self.versions[place]:
            node = NodeLanes(self.columns, place)
            off = sum([weight * (measure(task, node, ()) - 1.0) for measure, weight in self._companies])
            known = self._in_company[place, group] = (self.versions[place], off)
        return known[1]

    # --- many nodes

    def entries(self, question: Question, task: TaskView, most: int) -> Answer:
        """The nodes that take the task, so many of the best at least and those where room is kept for it."""
        base, stretch = question.base, question.stretch
        if base is None or stretch is None:
            return Answer([], True)
        near = question.with_model(most)
        if near:
            answer = Answer(near, False)
        else:
            base.renew((len(self.touched), self.undone))
            answer = question.entries(most)
        if task.id not in self._kept:
            return answer
        kept = [place for place in set(self._kept[task.id]) if stretch.has(place)]
        entries = [entry for entry in answer.entries if entry[1] not in kept]
        for place in kept:
            own = self.fit(question, task, place)
            if own is not None:
                entries.append((own[0], place, self.versions[place], own[1]))
        return Answer(entries, answer.all)

    def places(self, task: TaskView, below: int | None = None, limit: int | None = None) -> list[int]:
        """Places where the task could stand now; with `below`, where it could if every hold of a lower
        priority than that were gone which is preemptible or leaves anyway. At most `limit` of them."""
        if below is None:
            every = self.entries(self.question(task), task, len(self.nodes)).entries
            return sorted([entry[1] for entry in every])[:limit]
        stretch = self.question(task).stretch
        found: list[int] = []
        for place in [] if stretch is None else stretch.places():
            if len(found) == limit:
                break
            gone = {
                hold.task_id
                for card in self.nodes[place].cards
                for hold in card.holds
                if hold.priority < below and (hold.preemptible or hold.leaving) and not hold.reserved_for
            }
            if not isinstance(self.judge(task, place, gone), Refused):
                found.append(place)
        return found

    def ranked(self, task: TaskView, *, beside: Collection[int] = ()) -> list[int]:
        """Places that take the task now, best first; `beside` are those of its gang's other tasks."""
        others = [self.nodes[place] for place in beside]
        company = self._gang_companies if task.gang else self._companies
        rated = []
        for worth, place, _, _ in self.entries(self.question(task), task, len(self.nodes)).entries:
            node = NodeLanes(self.columns, place)
            more = sum([weight * measure(task, node, others) for measure, weight in company])
            rated.append((worth - more, place))
        return [place for _, place in sorted(rated)]

    # --- one node, filter by filter

    def _judge_room(self, ask: Ask, room: NodeRoom) -> "list[CardRoom] | Refused":
        left: list[CardRoom] | None = None
        for one in self.filters_of(ask):
            if one.of is Of.NODE or one.of is Of.NODE_FACTS:
                thing = room if one.of is Of.NODE else room.facts
                if not one.fits(ask, thing):
                    short = 0.0 if one.short is None else float(one.short(ask, thing))
                    return Refused(one.code(ask), dict(one.tell(ask, thing, None, 0)), short)
                continue
            left = room.cards if left is None else left
            stay = _staying(one, ask, left)
            if (left and not stay) if one.empties else len(stay) < ask.cards:
                return _refused(one, ask, room, left, stay)
            left = stay
        return choose(ask.cards, left or [])

    def _crosses_the_line(self, task: TaskView, place: int, lent: Collection[int]) -> bool:
        return any(
            hold.task_id in lent and not self.snapshot.may_share(task.tenant_id, hold.tenant_id)
            for card in self.nodes[place].cards
            for hold in card.holds
        )


def _staying(one: Filter, ask: Ask, left: list[CardRoom]) -> list[CardRoom]:
    if one.of is Of.CARD:
        return [card for card in left if one.fits(ask, card)]
    if one.of is Of.CARD_FACTS:
        return [card for card in left if one.fits(ask, card.facts)]
    stays = one.fits(ask, [card.model for card in left], [True] * len(left))
    return [card for card, stays_there in zip(left, stays, strict=True) if stays_there]


def _refused(one: Filter, ask: Ask, room: NodeRoom, left: list[CardRoom], stay: list[CardRoom]) -> Refused:
    """With the numbers of the card that misses by the least."""
    failing = [card for card in left if card not in stay]
    code = one.code(ask)
    if one.short is None or not failing:
        told = one.tell(ask, room, failing[0] if failing else None, len(stay))
        missing = ask.cards - len(stay) if code == Code.CARDS_SHORT else 0
        return Refused(code, dict(told), float(missing))
    by, _, card = min((one.short(ask, card), card.slot, card) for card in failing)
    return Refused(code, dict(one.tell(ask, room, card, len(stay))), float(by))
