"""Why a task waits, as a few reasons: how many nodes refuse it for what, and the nearest miss with its
numbers (SCHED-10, SVC-14). Asked only where somebody waits.
"""

from collections.abc import Hashable

from agent.contract.codes import Code, Reason, reason
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.plan import told
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
    """As `plan.told` has them. Empty where every node would take it.

    Nodes outside the tenant's scope do not exist for it and are not counted (TEN-09); where none is
    left the one reason is `no_node`.
    """
    ask = board.question(task).ask
    misses, taking = board.misses.find(ask)
    counts: dict[Code, int] = {}
    nearest: dict[Code, Refused] = {}
    for miss in misses:
        code = miss.by.code(ask)
        if code == Code.NODE_NOT_ALLOWED:
            continue
        counts[code] = counts.get(code, 0) + miss.nodes
        refused = Refused(code) if miss.by.tell is no_numbers else board.refusal(ask, miss.nearest, miss.by)
        best = nearest.get(code)
        if best is None or refused.shortfall < best.shortfall:
            nearest[code] = refused
    if not counts:
        return [] if taking else [reason(Code.NO_NODE)]
    first, *others = told(counts, nearest)
    offline = _offline_type(board, task) if Code.NODE_OFFLINE in counts else []
    return [first, *offline, *others]


def _offline_type(board: Board, task: TaskView) -> list[Reason]:
    """That all cards of the type are on nodes that are offline (SCHED-13)."""
    if not task.gpu_type or not task.gpu_required:
        return []
    offline = board.misses.count_offline(board.question(task).ask)
    return [reason(Code.GPU_TYPE_OFFLINE, wanted=task.gpu_type, nodes=offline)] if offline else []
