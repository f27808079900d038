"""Asking about the working copy: one node about one task, and which nodes take it.

Owns nothing but that; booking is `Bookings`'. Never chooses a task or a node.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from agent.contract.codes import Code
from apps.scheduling.policy.ask import Ask, ShapeKey, shape_of
from apps.scheduling.policy.bookings import NOBODY, Bookings
from apps.scheduling.policy.capacity import MILLION, unrank
from apps.scheduling.policy.choice import choose
from apps.scheduling.policy.lanes import Chosen
from apps.scheduling.policy.misses import Misses
from apps.scheduling.policy.one import Company, OneCard, OneNode
from apps.scheduling.policy.questions import Answer, Base, Form, Question
from apps.scheduling.policy.registry import (
    OF_CARDS,
    Filter,
    Of,
    Refused,
    load_companies,
    load_filters,
    load_scores,
)
from apps.scheduling.policy.rooms import AnyCard, AnyNode, as_one
from apps.scheduling.policy.snapshot import Snapshot, TaskView
from apps.scheduling.policy.stretches import Stretch, Stretches

# Answers of so many kinds of task are kept; each takes some ten bytes a node.
BASES = 512

Fit = tuple[float, tuple[int, ...]]  # (-score without company, the cards' slots)

NO_CARDS = Chosen(0.0, 0.0)


def _filters_of(filters: Sequence[Filter], ask: Ask) -> tuple[Filter, ...]:
    """Those that apply to the task, in the order in which they are asked."""
    if ask.filters is None:
        ask.filters = tuple(
            [one for one in filters if (ask.cards or one.of not in OF_CARDS) and one.applies(ask)]
        )
    return ask.filters


class Board(Bookings):
    """The working copy with the plugins that judge it."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        weights = snapshot.weights
        # No method: who has one has the board, and a board that has itself is freed by a search alone.
        self.filters_of = partial(_filters_of, load_filters())
        self._scores = [(score, weights.get(score.name, 1.0)) for score in load_scores()]
        companies = [(company, weights.get(company.name, 1.0)) for company in load_companies()]
        self._companies = [(one.measure, weight) for one, weight in companies if weight and not one.gang]
        self._gang_companies = [(one.measure, weight) for one, weight in companies if weight]
        self._questions: dict[ShapeKey, Question] = {}
        self._stretches = Stretches(self.columns, self.filters_of)
        self.misses = Misses(self.columns, self.filters_of)
        self._seen_there = Company(self.columns, 0)  # one object for all, since it is read at once
        self._forms: dict[object, Form] = {}
        self._bases: dict[object, Base] = {}

    def question(self, task: TaskView) -> Question:
        """What is asked for tasks of this shape."""
        key = shape_of(task)
        found = self._questions.get(key)
        if found is None:
            ask = Ask(task, self.snapshot)
            found = Question(ask, self._form(ask), self._stretches.find(ask), self.columns)
            self._questions[key] = found
        return found

    def _form(self, ask: Ask) -> Form:
        found = self._forms.get(ask.form)
        if found is None:
            found = self._forms[ask.form] = Form(ask, self.filters_of(ask), self._scores)
        return found

    def _base(self, question: Question, stretch: Stretch) -> Base:
        key = (question.ask.base_key, id(stretch))
        found = self._bases.get(key)
        if found is None:
            if len(self._bases) >= BASES:
                self._bases.clear()  # questions that were asked keep theirs
            found = self._bases[key] = Base(question.ask, question.form, stretch, self.columns)
        question.base = found
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

    def refusal(self, ask: Ask, place: int, by: Filter) -> Refused:
        """What the filter says of a node, as it is, that passes all before it and not this one."""
        node = OneNode(self.columns, place)
        if by.of not in OF_CARDS:
            return _refused_node(by, ask, node)
        left: list[AnyCard] = list(node.cards)
        for one in self.filters_of(ask):
            if one.of in OF_CARDS:
                stay = _staying(one, ask, left)
                if one is by:
                    return _refused(one, ask, node, left, stay)
                left = stay
        raise AssertionError(f"{by.name} is not asked for such a task")

    def fit(self, question: Question, task: TaskView, place: int, likely: int = 0) -> Fit | None:
        """What a node that passed the filters of facts is worth; None where it refuses. Of a task of one card
        `likely` is the slot that is asked first, which spares asking others that are less full."""
        form, stretch, ask = question.form, question.stretch, question.ask
        if stretch is None:
            return None
        if task.id in self._kept:
            return self._fit_room(question, self.room_for(task, place))
        node = OneNode(self.columns, place)
        for fits in form.node_filters:
            if not fits(ask, node):
                return None
        if not ask.cards:
            return self._worth(question, node, NO_CARDS), ()
        ok = stretch.slots(place)
        if ask.cards == 1:
            best = self._fullest(question, place, ok, likely)
            if not best:
                return None
            fullness, slot = unrank(best)
            return self._worth(question, node, Chosen(fullness / MILLION, 0.0)), (slot,)
        cards = node.cards
        left = [(ok is None or ok[card.slot]) and _passes(form.card_filters, ask, card) for card in cards]
        for every in form.cards_filters:
            left = every(ask, [card.model for card in cards], left)
        some = [card for card, stays in zip(cards, left, strict=True) if stays]
        if len(some) < ask.cards:
            return None
        chosen = choose(ask.cards, some)
        return self._worth(question, node, as_one(chosen)), tuple([card.slot for card in chosen])

    def _fullest(self, question: Question, place: int, ok: list[bool] | None, likely: int) -> int:
        """The rank of the first card there that fits, 0 = none."""
        ask, asked, count = question.ask, question.form.card_filters, self.columns.count
        card, ranks = OneCard(self.columns, place, likely), self.columns.cells.rank[place::count].tolist()
        best: int = ranks[likely] if (ok is None or ok[likely]) and _passes(asked, ask, card) else 0
        for slot, its in enumerate(ranks):
            if its > best and slot != likely and (ok is None or ok[slot]):
                card.slot, card.lane = slot, slot * count + place
                if _passes(asked, ask, card):
                    best = its
        return best

    def _fit_room(self, question: Question, room: AnyNode) -> Fit | None:
        """Of a node where something may be thought away."""
        found = self._judge_room(question.ask, room)
        if isinstance(found, Refused):
            return None
        return self._worth(question, room, as_one(found)), tuple([card.slot for card in found])

    def _worth(self, question: Question, node: Any, chosen: Chosen) -> float:
        """Its score with the sign turned: less is better."""
        ask, form, total, more = question.ask, question.form, 0.0, 0.0
        for measure, weight in form.scores:
            total += weight * measure(ask, node, chosen)
        for score, weight in form.located:
            more += weight * score.measure(ask, node, chosen)
        return -float(total + more)

    def company(self, task: TaskView, place: int) -> float:
        """What the company of its group takes off the score there; 0 where it has none."""
        node, off = self._seen_there, 0.0
        node.place = place
        for measure, weight in self._companies:
            off += weight * (measure(task, node, ()) - 1.0)
        return off

    # --- many nodes

    def entries(self, question: Question, task: TaskView, most: int) -> Answer:
        """The nodes that take the task, so many of the best at least and those where room is kept for it."""
        stretch = question.stretch
        if stretch is None:
            return Answer([], True)
        self._base(question, stretch).renew((len(self.touched), self.undone))
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
            node = Company(self.columns, place)
            more = sum([weight * measure(task, node, others) for measure, weight in company])
            rated.append((worth - more, place))
        return [place for _, place in sorted(rated)]

    # --- one node, filter by filter

    def _judge_room(self, ask: Ask, room: AnyNode) -> "list[AnyCard] | Refused":
        left: list[AnyCard] | None = None
        for one in self.filters_of(ask):
            if one.of not in OF_CARDS:
                if not one.fits(ask, room if one.of is Of.NODE else room.facts):
                    return _refused_node(one, ask, room)
                continue
            left = list(room.cards) if left is None else left
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


def _passes(filters: Sequence[Callable[..., Any]], ask: Ask, card: OneCard) -> bool:
    for fits in filters:  # `all` of a generator would cost as much as a filter
        if not fits(ask, card):
            break
    else:
        return True
    return False


def _staying(one: Filter, ask: Ask, left: list[AnyCard]) -> list[AnyCard]:
    if one.of is Of.CARD:
        return [card for card in left if one.fits(ask, card)]
    if one.of is Of.CARD_FACTS:
        return [card for card in left if one.fits(ask, card.facts)]
    stays = one.fits(ask, [card.model for card in left], [True] * len(left))
    return [card for card, stays_there in zip(left, stays, strict=True) if stays_there]


def _refused_node(one: Filter, ask: Ask, room: AnyNode) -> Refused:
    thing = room if one.of is Of.NODE else room.facts
    short = 0.0 if one.short is None else float(one.short(ask, thing))
    return Refused(one.code(ask), dict(one.tell(ask, thing, None, 0)), short)


def _refused(one: Filter, ask: Ask, room: AnyNode, left: list[AnyCard], stay: list[AnyCard]) -> Refused:
    """With the numbers of the card that misses by the least."""
    failing = [card for card in left if card not in stay]
    code = one.code(ask)
    if one.short is None or not failing:
        told = one.tell(ask, room, failing[0] if failing else None, len(stay))
        missing = ask.cards - len(stay) if code == Code.CARDS_SHORT else 0
        return Refused(code, dict(told), float(missing))
    by, _, card = min((one.short(ask, card), card.slot, card) for card in failing)
    return Refused(code, dict(one.tell(ask, room, card, len(stay))), float(by))
