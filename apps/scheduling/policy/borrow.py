"""Cards of sleepers for training that fits nowhere else (SHARE-04).

Owns finding the cards; loans are made by whoever commits the placement. Asked after every ordinary place was
refused, so that no sleeper is kept from waking without need, and before preemption: a loan ends by itself and
costs nobody a running task.
"""

from agent.contract.states import TaskType
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.clearing import Cleared, Company, Effort, Search, mover
from apps.scheduling.policy.shapes import Alike, alike
from apps.scheduling.policy.snapshot import CardHold, TaskView

QUESTIONS = 500


class Borrowing:
    """Finds lenders in one decision; fewest of them first."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._effort = Effort(QUESTIONS)
        self._searches: dict[Alike, Search] = {}
        self._places: list[int] | None = None

    def find(self, task: TaskView) -> Cleared | None:
        """Where the task may borrow, and the sleepers (row ids) whose cards it would use. Books nothing."""
        if not task.may_borrow or task.task_type != TaskType.TRAINING or not task.gpu_required:
            return None
        places = self._with_lenders()
        if not places:
            return None
        kind = alike(task, self._board)
        search = self._searches.get(kind)
        if search is None:
            search = Search(self._board, task, places, lambda hold: self._lends(hold, task), lent=True)
            self._searches[kind] = search
        return search.best(task, self._effort)

    def _lends(self, hold: CardHold, task: TaskView) -> Company | None:
        # Also for a card of the lender's that stays unused: a loan never crosses the red line.
        shares = self._board.snapshot.may_share(task.tenant_id, hold.tenant_id)
        return (mover(hold),) if hold.sleeping and hold.lendable and shares else None

    def _with_lenders(self) -> list[int]:
        if self._places is None:
            self._places = [
                place
                for place, node in enumerate(self._board.nodes)
                if any(hold.lendable for card in node.cards for hold in card.holds)
            ]
        return self._places
