"""Why a task waits, as a few reasons: how many nodes refuse it for what, and the nearest miss with its
numbers (SCHED-10, SVC-14). Asked only where somebody waits.
"""

from collections.abc import Hashable

from agent.contract.codes import Code, Reason, reason
from apps.scheduling.policy.ask import Ask
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.misses import Miss
from apps.scheduling.policy.plan import sum_up
from apps.scheduling.policy.registry import Refused, no_numbers
from apps.scheduling.policy.snapshot import TaskView


class Reasons:
    """Of one decision: asked once for all shapes that differ in nothing that a reason tells, mostly in their
    model. Room does not grow in a decision, so who was refused once is refused later, too."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._known: dict[Hashable, list[Reason]] = {}

    def of(self, task: TaskView) -> list[Reason]:
        """As `reasons_of`, by the time when such a task was refused first."""
        key = self._board.misses.key_of(self._board.question(task).ask)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = reasons_of(self._board, task)
        return found


def reasons_of(board: Board, task: TaskView) -> list[Reason]:
    """As `sum_up` has them, and that a whole type is offline (SCHED-13). Empty where every node would take
    it."""
    ask = board.question(task).ask
    misses, taking = board.misses.find(ask)
    first, *others = sum_up((_told_by(board, ask, miss), miss.nodes) for miss in misses)
    if first.code == Code.NO_NODE:
        return [] if taking else [first]
    offline = _offline_type(board, task) if any(why.code == Code.NODE_OFFLINE for why in others) else []
    return [first, *offline, *others]


def _told_by(board: Board, ask: Ask, miss: Miss) -> Refused:
    numberless = miss.by.tell is no_numbers
    return Refused(miss.by.code(ask)) if numberless else board.refusal(ask, miss.nearest, miss.by)


def _offline_type(board: Board, task: TaskView) -> list[Reason]:
    """That all cards of the type are on nodes that are offline (SCHED-13)."""
    if not task.gpu_type or not task.gpu_required:
        return []
    offline = board.misses.count_offline(board.question(task).ask)
    return [reason(Code.GPU_TYPE_OFFLINE, wanted=task.gpu_type, nodes=offline)] if offline else []
