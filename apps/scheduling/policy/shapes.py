"""Tasks that every node answers alike, and the nodes that would take them, best first.

Owns the grouped method: nodes are asked at once per shape, not per task, and for some shapes that come soon
together; a placement only has the node that it touched looked at again, and only when it is the best one
left.
Capacity only shrinks within one decision, so a node that refused once is out for good.
"""

import heapq
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from agent.contract.codes import Reason
from apps.scheduling.policy.ask import ShapeKey, shape_of
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.capacity import Load
from apps.scheduling.policy.ports import Ports
from apps.scheduling.policy.questions import Entry, Question, ask_near
from apps.scheduling.policy.reasons import Reasons
from apps.scheduling.policy.snapshot import TaskView

# Nodes kept for a shape beyond one for each of its tasks.
SPARE = 2

# A shape that is asked again looks at the nodes that others touched meanwhile, where they are no more than
# this. More would only sharpen the order among them: room is checked again before a node is taken.
CATCH_UP = 8

# Shapes are asked about together whose tasks are no more than one of so many nodes: few of those are touched
# meanwhile.
AHEAD = 12

LATER = -2  # the version of an entry that says what its node may be worth at the most
GONE = -3  # that of a node that refused

Alike = tuple[ShapeKey, int]
# An entry in the company of its group: (worth there, place, the rest as in Entry, worth without company)
Beside = tuple[float, int, int, tuple[int, ...], float]


# (Place, the cards' places in the node, percent promised of the card, ports)
Taken = tuple[int, tuple[int, ...], int | None, Ports]


def alike(task: TaskView, board: Board) -> Alike:
    """What tasks have in common that every node answers alike: their shape; one that has room kept for it is
    alone of its kind."""
    return (shape_of(task), task.id if task.id in board.keep_room else 0)


class Shape:
    """The nodes that take one shape of task, best first. `tasks` is how many of it may come."""

    __slots__ = (
        "_all",
        "_beside",
        "_board",
        "_bound",
        "_breathe",
        "_group",
        "_heap",
        "_latest",
        "_load",
        "_question",
        "_reasons",
        "_rise",
        "_seen",
        "_why",
        "is_prepared",
        "percent",
        "task",
        "tasks",
    )

    def __init__(self, task: TaskView, board: Board, why: Reasons, breathe: Callable[[], None]) -> None:
        self.task = task  # one of them
        self.is_prepared = False
        self.tasks = 0
        self._board = board
        self._why = why
        self._breathe = breathe
        self._question: Question | None = None
        self._heap: list[Entry] | None = None
        self._all = False  # the heap holds every node that takes it
        self._bound = inf  # no node is better than this that is not in the heap
        self._group = 0
        self._beside: list[Beside] = []  # a heap of the nodes where tasks of the group are
        self._latest: dict[int, int] = {}  # place -> the version of its latest entry, where it is another one
        self._load: Load | None = None  # what one of them puts on its cards
        self.percent: int | None = None  # of its card that one is promised, None = whole ones or none
        self._rise = 0.0  # by how much a booking may raise what a node is worth
        self._seen = 0
        self._reasons: list[Reason] | None = None

    def place(self, task: TaskView) -> Taken | None:
        """Book the best node for one task of this shape, None where none takes it."""
        found = self._best(task)
        if found is None:
            return None
        board, (_, place, _, slots, worth) = self._board, found
        ports = board.book(task, place, slots, self._load)
        touched = len(board.touched)
        if touched - self._seen == 1:
            self._seen = touched
        # What the node is worth now is asked when it could matter: beside a task of its own group it mostly
        # does not.
        worth -= self._rise
        self._latest[place] = LATER
        there = worth - board.company(task, place)
        heapq.heappush(self._beside, (there, place, LATER, slots, worth))
        return place, slots, self.percent, ports

    def _best(self, task: TaskView) -> Beside | None:
        """The best node and its cards, taken out of the heaps."""
        if self._reasons is not None:
            return None
        heap = self._heap
        if heap is None:
            heap = self._fill(task)
        elif len(self._board.touched) != self._seen:
            self._catch_up(task, heap)
        if task.group_id != self._group:
            self._part(heap)
            self._group = task.group_id
        chosen = self._pick(task, heap)
        if not self._all and (chosen is None or chosen[0] > self._bound):
            chosen = self._pick(task, self._fill(task))
        return chosen

    def why_not(self, task: TaskView) -> list[Reason]:
        """Why no node takes it: asked once, for room does not grow in a decision."""
        if self._reasons is None:
            self._reasons = self._why.of(task)
        return self._reasons

    def prepare(self, entries: list[Entry], question: Question) -> None:
        """Take the nodes near its model, sorted, for those that are better than all others."""
        if entries:
            self._keep(question, entries, complete=False)
            self._bound = -question.form.range

    def _fill(self, task: TaskView) -> list[Entry]:
        self._breathe()
        board = self._board
        question = board.question(task)
        found = board.entries(question, task, self.tasks + SPARE)
        heapq.heapify(found.entries)
        self._keep(question, found.entries, complete=found.all)
        return found.entries

    def _keep(self, question: Question, heap: list[Entry], *, complete: bool) -> None:
        self._question = question
        ask = question.ask
        self._rise = question.rise if ask.cards == 1 else 0.0
        self._load = ask.load
        self.percent = None if ask.whole or not ask.cards else ask.percent
        self._heap = heap
        self._all = complete
        self._bound = inf
        self._beside = []
        self._latest = {}
        self._seen = len(self._board.touched)

    def _part(self, heap: list[Entry]) -> None:
        """Another group comes: the nodes where the last one was are nodes like others."""
        for _, place, version, slots, worth in self._beside:
            heapq.heappush(heap, (worth, place, version, slots))
        self._beside = []

    def _pick(self, task: TaskView, heap: list[Entry]) -> Beside | None:
        """Take the best one off. A heap knows what a node is worth without company, which is the most it can
        be; where its group is, it is compared by what it is worth there."""
        board, beside, latest = self._board, self._beside, self._latest
        versions, group = board.versions, board.columns.siblings.get(task.group_id)
        best: Entry | None = None
        while heap:
            worth, place, version, slots = entry = heap[0]
            if latest.get(place, version) != version:
                heapq.heappop(heap)
            elif group and group.get(place):
                heapq.heappop(heap)
                heapq.heappush(beside, (worth - board.company(task, place), place, version, slots, worth))
            elif version == versions[place]:
                best = entry
                break
            else:
                heapq.heappop(heap)
                self._ask_again(task, place, slots, heap)
        while beside:
            there, place, version, slots, worth = beside[0]
            if best is not None and (best[0], best[1]) <= (there, place):
                break
            heapq.heappop(beside)
            if latest.get(place, version) != version:
                continue
            if version == versions[place]:
                return there, place, version, slots, worth
            found = self._ask(task, place, slots)
            if found is not None:
                there = found[0] - board.company(task, place)
                heapq.heappush(beside, (there, place, found[2], found[3], found[0]))
        if best is None:
            return None
        heapq.heappop(heap)
        return best[0], best[1], best[2], best[3], best[0]

    def _ask(self, task: TaskView, place: int, slots: tuple[int, ...]) -> Entry | None:
        """What a node says that was touched."""
        if self._question is None:
            return None
        found = self._board.fit(self._question, task, place, slots[0] if slots else 0)
        if found is None:
            self._latest[place] = GONE
            return None
        now = self._latest[place] = self._board.versions[place]
        return found[0], place, now, found[1]

    def _ask_again(self, task: TaskView, place: int, slots: tuple[int, ...], heap: list[Entry]) -> None:
        entry = self._ask(task, place, slots)
        if entry is not None:
            heapq.heappush(heap, entry)

    def _catch_up(self, task: TaskView, heap: list[Entry]) -> None:
        """Look at nodes that others touched meanwhile."""
        board, question, seen = self._board, self._question, self._seen
        touched = board.touched
        self._seen = len(touched)
        versions, latest = board.versions, self._latest
        if len(touched) - seen <= CATCH_UP and question is not None and question.stretch is not None:
            for place in sorted(set(touched[seen:])):
                if latest.get(place) != versions[place] and question.stretch.has(place):
                    self._ask_again(task, place, (), heap)


class Shapes:
    """The shapes of a decision. `coming` are its tasks in about the order in which they will be decided."""

    def __init__(self, board: Board, coming: Iterable[TaskView], breathe: Callable[[], None]) -> None:
        self._board = board
        self._breathe = breathe
        self._why = Reasons(board)
        self._by_key: dict[Alike, Shape] = {}
        self._by_task: dict[int, Shape] = {}
        for task in coming:
            with suppress(TypeError):  # a field that is no plain value is met again when its turn comes
                shape = self._by_task[task.id] = self._find(task)
                shape.tasks += 1
        self._order = list(self._by_key.values())
        self._next = 0

    def of(self, task: TaskView) -> Shape:
        """The shape of a task, asked about near its model."""
        shape = self._by_task.get(task.id)
        if shape is None:  # none of those that were told of
            shape = self._find(task)
            shape.tasks = max(1, shape.tasks)
        elif not shape.is_prepared:
            self._look_ahead(shape)
        return shape

    def _find(self, task: TaskView) -> Shape:
        key = alike(task, self._board)
        shape = self._by_key.get(key)
        if shape is None:
            shape = self._by_key[key] = Shape(task, self._board, self._why, self._breathe)
        return shape

    def _look_ahead(self, shape: Shape) -> None:
        """Ask about a shape near its model, together with those of its like that come next."""
        self._breathe()
        board = self._board
        lines: dict[object, list[tuple[Shape, Question]]] = {}
        budget = board.columns.count / AHEAD
        while True:
            shape.is_prepared = True
            with suppress(Exception):  # of a plugin that trips over one task: it does again in its turn
                question = board.question(shape.task)
                if question.is_near_best and shape.task.id not in board.keep_room:
                    key = (question.ask.form, question.circle.word)
                    lines.setdefault(key, []).append((shape, question))
            budget -= shape.tasks
            following = self._following()
            if following is None or following.tasks > budget:
                break
            shape = following
            self._next += 1
        for line in lines.values():
            questions = [question for _, question in line]
            found = ask_near(questions, [shape.tasks + SPARE for shape, _ in line], board.columns)
            for (shape, question), entries in zip(line, found, strict=True):
                shape.prepare(entries, question)

    def _following(self) -> Shape | None:
        """The next one that nothing was asked about yet."""
        while self._next < len(self._order):
            shape = self._order[self._next]
            if not shape.is_prepared:
                return shape
            self._next += 1
        return None
