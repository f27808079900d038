"""Tasks that every node answers alike, and the nodes that would take them, best first.

Owns the grouped method: all nodes are asked at once per shape, not per task; a placement only has the node
that it touched looked at again, and only when it is the best one left. Capacity only shrinks within one
decision, so a node that refused once is out for good.
"""

import heapq
from collections.abc import Callable

from agent.contract.codes import Reason
from apps.scheduling.policy.ask import ShapeKey, shape_of
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.questions import Entry, Question
from apps.scheduling.policy.reasons import reasons_of
from apps.scheduling.policy.snapshot import TaskView

# Nodes kept for a shape beyond one for each of its tasks.
SPARE = 8

# A shape that is asked again looks at the nodes that others touched meanwhile, where they are no more than
# this. More would only sharpen the order among them: room is checked again before a node is taken.
CATCH_UP = 8

# Nodes compared for one task where its group's replicas already stand on the best ones.
COMPARE = 64

Alike = tuple[ShapeKey, int]


def alike(task: TaskView, board: Board) -> Alike:
    """What tasks have in common that every node answers alike: their shape; one that has room kept for it is
    alone of its kind."""
    return (shape_of(task), task.id if task.id in board.keep_room else 0)


class Shape:
    """The nodes that take one shape of task, best first. `tasks` is how many of it may come."""

    __slots__ = ("_all", "_board", "_breathe", "_heap", "_latest", "_question", "_reasons", "_seen", "tasks")

    def __init__(self, board: Board, breathe: Callable[[], None]) -> None:
        self.tasks = 0
        self._board = board
        self._breathe = breathe
        self._question: Question | None = None
        self._heap: list[Entry] | None = None
        self._all = False  # the heap holds every node that takes it
        self._latest: dict[int, int] = {}  # place -> the version of its latest entry, where there are several
        self._seen = 0
        self._reasons: list[Reason] | None = None

    def best(self, task: TaskView) -> tuple[int, tuple[int, ...]] | None:
        """(Place, the cards' places in the node) for one task of this shape, None where no node takes it.

        The heap knows what a node is worth without company, which is the most it can be; so nodes are taken
        off it until none left can beat the best one found, or enough were compared.
        """
        if self._reasons is not None:
            return None
        if self._heap is None:
            heap = self._fill(task)
        else:
            heap = self._heap
            self._catch_up(task, heap)
        found = self._pick(task, heap)
        if found is None and not self._all:
            found = self._pick(task, self._fill(task))
        return found

    def booked(self, place: int, slots: tuple[int, ...]) -> None:
        """A task went where `best` said: of one card it is known at once what it is worth now."""
        question, heap = self._question, self._heap
        if question is None or heap is None or len(slots) != 1:
            return
        touched = len(self._board.touched)
        if touched - self._seen == 1:
            self._seen = touched
        found = self._board.fit_again(question, place, slots[0])
        if found is not None:
            now = self._board.versions[place]
            self._latest[place] = now
            heapq.heappush(heap, (found[0], place, now, found[1]))

    def why_not(self, task: TaskView) -> list[Reason]:
        """Why no node takes it: asked once, for room does not grow in a decision."""
        if self._reasons is None:
            self._reasons = reasons_of(self._board, task)
        return self._reasons

    def _fill(self, task: TaskView) -> list[Entry]:
        self._breathe()
        board = self._board
        self._question = board.question(task)
        found = board.entries(self._question, task, self.tasks + SPARE)
        self._all = found.all
        self._heap = heap = found.entries
        heapq.heapify(heap)
        self._latest.clear()
        self._seen = len(board.touched)
        return heap

    def _pick(self, task: TaskView, heap: list[Entry]) -> tuple[int, tuple[int, ...]] | None:
        board, versions, question = self._board, self._board.versions, self._question
        if question is None:
            return None
        best: tuple[float, int] | None = None
        chosen = None
        looked_at: list[Entry] = []
        while heap and len(looked_at) < COMPARE:
            entry = heap[0]
            worth, place, version, slots = entry
            if best is not None and (worth, place) >= best:
                break
            now = versions[place]
            if version != now:
                if self._latest.get(place) == now:
                    heapq.heappop(heap)  # there is a newer entry
                    continue
                found = board.fit(question, task, place)
                if found is None:
                    heapq.heappop(heap)
                else:
                    heapq.heapreplace(heap, (found[0], place, now, found[1]))
                    self._latest[place] = now
                continue
            company = board.company(task, place)
            if not company and not looked_at:
                return place, slots
            looked_at.append(heapq.heappop(heap))
            if best is None or (worth - company, place) < best:
                best, chosen = (worth - company, place), (place, slots)
        for entry in looked_at:
            heapq.heappush(heap, entry)
        return chosen

    def _catch_up(self, task: TaskView, heap: list[Entry]) -> None:
        board, question = self._board, self._question
        touched, seen = board.touched, self._seen
        self._seen = len(touched)
        if not 0 < len(touched) - seen <= CATCH_UP or question is None or question.stretch is None:
            return
        for place in sorted(set(touched[seen:])):
            now = board.versions[place]
            if self._latest.get(place) != now and question.stretch.has(place):
                found = board.fit(question, task, place)
                self._latest[place] = now
                if found is not None:
                    heapq.heappush(heap, (found[0], place, now, found[1]))
