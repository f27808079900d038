"""Cards of sleepers for training that fits nowhere else (SHARE-04).

Owns finding the cards; loans are made by whoever commits the placement. Asked after every ordinary place was
refused, so that no sleeper is kept from waking without need, and before preemption: a loan ends by itself and
costs nobody a running task.
"""

from agent.contract.states import TaskType
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.clearing import Cleared, Company, Effort, Search, fleet_without, mover, places_of
from apps.scheduling.policy.shapes import Alike, alike
from apps.scheduling.policy.snapshot import CardHold, TaskView

# In one decision; who comes too late is asked again in the next one.
QUESTIONS = 500
SEARCHES = 32


class Borrowing:
    """Finds lenders in one decision; fewest of them first."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._effort = Effort(QUESTIONS)
        self._searches: dict[Alike, Search] = {}
        self._without: Board | None = None

    def find(self, task: TaskView) -> Cleared | None:
        """Where the task may borrow, and the sleepers (row ids) whose cards it would use. Books nothing."""
        if not task.may_borrow or task.task_type != TaskType.TRAINING or not task.gpu_required:
            return None
        if not self._without_lenders().nodes:
            return None
        kind = alike(task, self._board)
        search = self._searches.get(kind)
        if search is None:
            if len(self._searches) >= SEARCHES:
                return None
            places = places_of(self._without_lenders(), task, self._board)
            search = Search(self._board, task, places, lambda hold: self._lends(hold, task), lent=True)
            if places:
                self._searches[kind] = search
        return search.best(task, self._effort)

    def _lends(self, hold: CardHold, task: TaskView) -> Company | None:
        # Also for a card of the lender's that stays unused: a loan never crosses the red line.
        shares = self._board.snapshot.may_share(task.tenant_id, hold.tenant_id)
        return (mover(hold),) if hold.sleeping and hold.lendable and shares else None

    def _without_lenders(self) -> Board:
        if self._without is None:
            self._without = fleet_without(self._board, lambda hold: hold.sleeping and hold.lendable)
        return self._without
