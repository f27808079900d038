"""Why each node does not take a task: the first check that refuses it there, with its numbers (SVC-14).

Pure. Owns asking every node once; the checks are the scheduler's own, so that an explanation can't differ
from the decision. Room is judged as it is now, without what other waiting tasks would take first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from apps.scheduling.policy.board import Board
from apps.scheduling.policy.registry import Refused
from apps.scheduling.policy.shapes import Alike, alike
from apps.scheduling.policy.snapshot import NodeView, Snapshot, TaskView


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one node says; `refused` None = it would take the task."""

    node: NodeView
    refused: Refused | None


def judge_nodes(snapshot: Snapshot, tasks: Iterable[TaskView]) -> dict[int, list[Verdict]]:
    """By the task's row id: every node's word, those that would take it first, then the nearest miss.
    Tasks that every node answers alike are judged once."""
    board = Board(snapshot)
    judged: dict[Alike, list[Verdict]] = {}
    found = {}
    for task in tasks:
        key = alike(task, board)
        if key not in judged:
            words = (_judge(board, task, place) for place in range(len(board.nodes)))
            judged[key] = sorted(words, key=_order)
        found[task.id] = judged[key]
    return found


def _judge(board: Board, task: TaskView, place: int) -> Verdict:
    left = board.judge(task, place)
    return Verdict(board.nodes[place], left if isinstance(left, Refused) else None)


def _order(verdict: Verdict) -> tuple[bool, bool, float, str]:
    """Only checks of room tell a shortfall, and they stand last: such a node passed all others."""
    refused = verdict.refused
    shortfall = 0.0 if refused is None else refused.shortfall
    return (refused is not None, shortfall == 0, shortfall, verdict.node.name)
