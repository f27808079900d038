"""The smallest sets of tasks that must go from a node so that another one gets its cards there.

Owns the search, for preemption (SCHED-11) and borrowing (SHARE-04) alike: fewest tasks first, of equally many
the youngest. Who may be moved is its callers' matter, and the scheduler's own checks have the last word on
every set. It looks at a bounded number of nodes and sets, so that many who wait in vain cost little.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb, inf

from msgspec.structs import replace

from apps.scheduling.policy.board import Board
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import CardHold, CardView, TaskView

NODES_A_SEARCH = 64  # the first ones by name; a larger fleet has as good ones among them
SETS_A_NODE = 256
SETS_A_CARD = 64

Mover = tuple[float, int]  # (its age, older is larger; the task's row id)
Company = tuple[Mover, ...]  # those that can only go together; () = goes by itself, at no cost
Moves = Callable[[CardHold], Company | None]  # None = it stays


def mover(hold: CardHold) -> Mover:
    """A hold's task as one that may be moved. One of unknown age counts as the oldest."""
    return (inf if hold.since is None else -hold.since.timestamp(), hold.task_id)


@dataclass(frozen=True, slots=True)
class Cleared:
    """A node that takes the task on these cards (row ids) once the `movers` (row ids) are gone."""

    place: int
    cards: tuple[int, ...]
    movers: frozenset[int]


class Effort:
    """How often nodes may be asked in one decision, all searches together."""

    def __init__(self, times: int) -> None:
        self._left = times

    def spend(self) -> bool:
        """Whether one more question is allowed."""
        self._left -= 1
        return self._left >= 0


@dataclass(frozen=True, slots=True, order=True)
class _Choice:
    """Companies that go, in the order of preference: few, then those whose oldest is youngest."""

    size: int
    ages: tuple[Mover, ...]
    companies: tuple[Company, ...]

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(task_id for _, task_id in self.ages)


def _choice(companies: Iterable[Company]) -> _Choice:
    some = tuple(sorted(set(companies)))
    ages = tuple(sorted({one for company in some for one in company}, reverse=True))
    return _Choice(len(ages), ages, some)


def fleet_without(board: Board, goes: Callable[[CardHold], bool]) -> Board:
    """The nodes where somebody could go, without all of those: to ask many nodes at once whether a task would
    fit there. It shows a little more than there is; bookings of this decision are not on it."""
    nodes = []
    for node in board.nodes:
        cards = tuple(_card_without(card, goes) for card in node.cards)
        if any(new is not old for new, old in zip(cards, node.cards, strict=True)):
            nodes.append(replace(node, cards=cards))
    return Board(replace(board.snapshot, nodes=tuple(nodes)))


def places_of(fleet: Board, task: TaskView, board: Board) -> list[int]:
    """Where a task would fit in such a fleet, as places of the board that it was made of."""
    return [board.place_of[fleet.nodes[place].id] for place in fleet.places(task)]


def _card_without(card: CardView, goes: Callable[[CardHold], bool]) -> CardView:
    stays = tuple(hold for hold in card.holds if not goes(hold))
    if len(stays) == len(card.holds):
        return card
    # Whose use would end is a matter of the judge: here only strangers' remains.
    return replace(card, holds=stays, used_mb=None if card.used_mb is None else card.foreign_mb or 0)


class Search:
    """Over some nodes, for tasks of one shape. It may be asked again after bookings: nodes that were touched
    meanwhile are looked at once more. `lent`: those who make room stay there, asleep."""

    def __init__(
        self, board: Board, task: TaskView, places: Iterable[int], moves: Moves, *, lent: bool = False
    ) -> None:
        self._board = board
        self._moves = moves
        self._lent = lent
        self._heap: list[tuple[_Choice, int, int]] = []  # (choice, place, which look at it)
        self._looks: dict[int, int] = {}  # by place
        self._rest: dict[int, Iterator[_Choice]] = {}
        self._away: dict[int, frozenset[int]] = {}
        self._seen = len(board.touched)
        for place in islice(places, NODES_A_SEARCH):
            self._look(task, place)

    def best(self, task: TaskView, effort: Effort) -> Cleared | None:
        """The first set that the checks accept; None where there is none, or effort is at its end."""
        touched = set(self._board.touched[self._seen :])
        self._seen = len(self._board.touched)
        for place in sorted(touched & self._looks.keys()):
            self._look(task, place)
        while self._heap:
            choice, place, look = self._heap[0]
            if look != self._looks[place]:
                heapq.heappop(self._heap)
                continue
            if not effort.spend():
                return None
            cards = self._judge(task, place, choice)
            if cards is not None:
                return self._reduced(task, place, choice, cards, effort)
            heapq.heappop(self._heap)
            self._push(place)
        return None

    def _look(self, task: TaskView, place: int) -> None:
        self._looks[place] = self._looks.get(place, 0) + 1
        held = [
            [hold for hold in self._board.holds(place, card.id) if hold.reserved_for != task.id]
            for card in self._board.nodes[place].cards
        ]
        going = {hold.task_id for holds in held for hold in holds if self._moves(hold) == ()}
        self._away[place] = frozenset(going)
        limit = self._board.snapshot.reserve.limit_percent
        self._rest[place] = iter(choices(task, held, self._moves, limit))
        self._push(place)

    def _push(self, place: int) -> None:
        choice = next(self._rest[place], None)
        if choice is not None:
            heapq.heappush(self._heap, (choice, place, self._looks[place]))

    def _judge(self, task: TaskView, place: int, choice: _Choice) -> tuple[int, ...] | None:
        gone = choice.ids | self._away[place]
        if self._lent:
            found = self._board.judge(task, place, lent=gone)
        else:
            found = self._board.judge(task, place, gone)
        return None if isinstance(found, Refused) else found

    def _reduced(
        self, task: TaskView, place: int, choice: _Choice, cards: tuple[int, ...], effort: Effort
    ) -> Cleared:
        """Less whoever need not go after all, the oldest first: where a node offers too many sets, not all
        of them were tried."""
        for company in sorted(choice.companies, reverse=True):
            if len(choice.companies) == 1 or not effort.spend():
                break
            fewer = _choice(one for one in choice.companies if one != company)
            left = self._judge(task, place, fewer)
            if left is not None:
                choice, cards = fewer, left
        return Cleared(place, cards, choice.ids)


def choices(task: TaskView, held: Sequence[Collection[CardHold]], moves: Moves, limit: int) -> list[_Choice]:
    """The sets of a node that may make room, best first; `held` by card, `limit` is what a card may promise.

    A set that could not suffice by the number of cards or by the promises is left out: that saves questions,
    it decides nothing.
    """
    found = (
        _for_whole_cards(task, held, moves) if task.whole_cards else _for_a_share(task, held, moves, limit)
    )
    return sorted(set(found))


def _for_whole_cards(task: TaskView, held: Sequence[Collection[CardHold]], moves: Moves) -> Iterator[_Choice]:
    cards = []
    for holds in held:
        companies = [moves(hold) for hold in holds]
        if None not in companies:
            cards.append(_choice(company for company in companies if company))
    cards.sort()
    while comb(len(cards), task.gpu_required) > SETS_A_NODE:
        cards.pop()  # the one that would cost most
    for some in combinations(cards, task.gpu_required):
        yield _choice(company for card in some for company in card.companies)


def _for_a_share(
    task: TaskView, held: Sequence[Collection[CardHold]], moves: Moves, limit: int
) -> Iterator[_Choice]:
    for holds in held:
        missing = (task.percent or 0) - limit
        freed: dict[Company, int] = {}
        for hold in holds:
            company, promise = moves(hold), hold.promise
            if company != ():
                missing += promise
            if company:
                freed[company] = freed.get(company, 0) + promise
        if sum(freed.values()) < missing:
            continue
        most, fewest = sorted(freed.values(), reverse=True), 0
        while sum(most[:fewest]) < missing:
            fewest += 1
        some = (
            few
            for size in range(fewest, len(freed) + 1)
            for few in combinations(sorted(freed), size)
            if sum(freed[company] for company in few) >= missing
        )
        for few in islice(some, SETS_A_CARD):
            yield _choice(few)
        yield _choice(freed)
