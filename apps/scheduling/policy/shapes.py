"""Tasks that every node answers alike, and the nodes that would take them, best first.

Owns the grouped method: filters run once per shape and node, not once per task; a placement only
has the node it touched looked at again. Capacity only shrinks within one decision, so a node that
refused once is out for good.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from agent.contract.states import TaskType
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.snapshot import TaskView

# A shape that is asked again looks at this many of the nodes that others touched meanwhile. More
# would only sharpen the order among them: room is checked again before a node is taken.
CATCH_UP = 32

# Nodes compared for one task where its group's replicas already stand on the best ones.
COMPARE = 64


@dataclass(frozen=True, slots=True)
class ShapeKey:
    """All that filters and group-free scores read of a task."""

    tenant_id: int
    task_type: TaskType
    gpu_required: int
    gpu_type: str
    memory_mb: int | None
    percent: int | None
    engine: str
    has_command: bool
    ports: tuple[tuple[int, int], ...]
    refused_by: frozenset[str]


def shape_of(task: TaskView) -> ShapeKey:
    """The shape of a task."""
    return ShapeKey(
        task.tenant_id,
        task.task_type,
        task.gpu_required,
        task.gpu_type,
        task.memory_mb,
        task.percent,
        task.engine,
        task.has_command,
        task.ports,
        task.refused_by,
    )


Alike = tuple[ShapeKey, int]


def alike(task: TaskView, board: Board) -> Alike:
    """What tasks have in common that every node answers alike: their shape; one that has room kept for it is
    alone of its kind."""
    return (shape_of(task), task.id if task.id in board.keep_room else 0)


class Shape:
    """The nodes that take one shape of task, best first."""

    def __init__(self, board: Board, sample: TaskView, breathe: Callable[[], None]) -> None:
        self._board = board
        self._sample = sample
        self._heap: list[tuple[float, int, int]] = []  # (-score, node's place, node's version)
        self.refused: dict[int, Refused] = {}  # by the node's place
        # node's place -> its version when it was last judged, and the cards it would give
        self._judged: dict[int, tuple[int, list[CardRoom]]] = {}
        self._seen = len(board.touched)
        for room in board.rooms:
            self._judge(room)
            if not room.place % 256:
                breathe()

    def _judge(self, room: NodeRoom) -> None:
        place = room.place
        if place in self.refused or (place in self._judged and self._judged[place][0] == room.version):
            return
        cards = self._board.judge_room(self._sample, room)
        if isinstance(cards, Refused):
            self.refused[place] = cards
        else:
            self._judged[place] = (room.version, cards)
            score = self._board.score(self._sample, room, cards, by_group=False)
            heapq.heappush(self._heap, (-score, place, room.version))

    def best(self, task: TaskView) -> tuple[NodeRoom, list[CardRoom]] | None:
        """The node for one task of this shape, None where no node takes it.

        The heap knows what a node is worth without regard to the task's group, which is the most it
        can be; so nodes are taken off it until none left can beat the best one found, or enough
        were compared.
        """
        self._catch_up()
        best: tuple[float, int, NodeRoom, list[CardRoom]] | None = None
        looked_at: list[tuple[float, int, int]] = []
        while self._heap and len(looked_at) < COMPARE:
            most, place, version = self._heap[0]
            if best is not None and (most, place) >= (best[0], best[1]):
                break
            heapq.heappop(self._heap)
            room = self._board.rooms[place]
            if version != room.version:
                self._judge(room)
                continue
            cards = self._judged[place][1]
            looked_at.append((most, place, version))
            score = -self._board.score(task, room, cards, by_group=True)
            if best is None or (score, place) < (best[0], best[1]):
                best = (score, place, room, cards)
        for entry in looked_at:
            heapq.heappush(self._heap, entry)
        return None if best is None else (best[2], best[3])

    def _catch_up(self) -> None:
        touched = self._board.touched
        recent = set(touched[max(self._seen, len(touched) - CATCH_UP) :])
        self._seen = len(touched)
        for place in sorted(recent):
            self._judge(self._board.rooms[place])
