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
SPARE = 2

# A shape that is asked again looks at the nodes that others touched meanwhile, where they are no more than
# this. More would only sharpen the order among them: room is checked again before a node is taken.
CATCH_UP = 8

# Nodes compared for one task where its group's replicas already stand on the best ones.
COMPARE = 64

LATER = -2  # the version of an entry that says what its node may be worth at the most

Alike = tuple[ShapeKey, int]


def alike(task: TaskView, board: Board) -> Alike:
    """What tasks have in common that every node answers alike: their shape; one that has room kept for it is
    alone of its kind."""
    return (shape_of(task), task.id if task.id in board.keep_room else 0)


class Shape:
    """The nodes that take one shape of task, best first. `tasks` is how many of it may come."""

    __slots__ = (
        "_all",
        "_board",
        "_breathe",
        "_heap",
        "_later",
        "_latest",
        "_question",
        "_reasons",
        "_seen",
        "_worth",
        "tasks",
    )

    def __init__(self, board: Board, breathe: Callable[[], None]) -> None:
        self.tasks = 0
        self._board = board
        self._breathe = breathe
        self._question: Question | None = None
        self._heap: list[Entry] | None = None
        self._all = False  # the heap holds every node that takes it
        self._latest: dict[int, int] = {}  # place -> the version of its latest entry, where there are several
        self._later: dict[int, float] = {}  # place -> worth of the entry that says what it may be worth
        self._worth = 0.0  # of the entry chosen last
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
        """A task went where `best` said. What the node is worth now is asked when it could matter: beside a
        task of its own group it mostly does not."""
        question, heap, board = self._question, self._heap, self._board
        touched = len(board.touched)
        if touched - self._seen == 1:
            self._seen = touched
        if question is None or question.base is None or heap is None or len(slots) != 1:
            return
        most = self._worth - question.base.rise
        self._latest[place] = board.versions[place]
        self._later[place] = most
        heapq.heappush(heap, (most, place, LATER, slots))

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
        self._later.clear()
        self._seen = len(board.touched)
        return heap

    def _pick(self, task: TaskView, heap: list[Entry]) -> tuple[int, tuple[int, ...]] | None:
        chosen, total, looked_at, later = self._look(task, heap)
        for most, place, entry in sorted(later):
            if chosen is not None and (most, place) >= (total, chosen[1]):
                looked_at.append(entry)
                continue
            del self._later[place]
            found = self._ask_again(task, place, heap)
            if found is not None:
                worth = found[0] - self._board.company(task, place)
                if chosen is None or (worth, place) < (total, chosen[1]):
                    total, chosen = worth, found
        for entry in looked_at:
            heapq.heappush(heap, entry)
        if chosen is None:
            return None
        self._worth = chosen[0]
        return chosen[1], chosen[3]

    def _look(
        self, task: TaskView, heap: list[Entry]
    ) -> tuple[Entry | None, float, list[Entry], list[tuple[float, int, Entry]]]:
        """(The best node of those that are known, what it is worth in its company; what was taken off the
        heap for that: known ones, and those that say the most they may be worth, with that in company)."""
        board, versions = self._board, self._board.versions
        chosen: Entry | None = None
        total = 0.0
        looked_at: list[Entry] = []
        later: list[tuple[float, int, Entry]] = []
        while heap and len(looked_at) < COMPARE:
            worth, place, version, _ = entry = heap[0]
            if chosen is not None and (worth, place) >= (total, chosen[1]):
                break
            heapq.heappop(heap)
            now = versions[place]
            if version == now:
                looked_at.append(entry)
                mine = worth - board.company(task, place)
                if chosen is None or (mine, place) < (total, chosen[1]):
                    total, chosen = mine, entry
            elif self._latest.get(place) != now:
                self._ask_again(task, place, heap)
            elif version == LATER and self._later.get(place) == worth:
                later.append((worth - board.company(task, place), place, entry))
        return chosen, total, looked_at, later

    def _ask_again(self, task: TaskView, place: int, heap: list[Entry]) -> Entry | None:
        """What a node says that was touched, as an entry in the heap."""
        if self._question is None:
            return None
        now = self._board.versions[place]
        found = self._board.fit(self._question, task, place)
        self._latest[place] = now
        if found is None:
            return None
        entry = (found[0], place, now, found[1])
        heapq.heappush(heap, entry)
        return entry

    def _catch_up(self, task: TaskView, heap: list[Entry]) -> None:
        board, question = self._board, self._question
        touched, seen = board.touched, self._seen
        self._seen = len(touched)
        if not 0 < len(touched) - seen <= CATCH_UP or question is None or question.stretch is None:
            return
        for place in sorted(set(touched[seen:])):
            if self._latest.get(place) != board.versions[place] and question.stretch.has(place):
                self._ask_again(task, place, heap)
