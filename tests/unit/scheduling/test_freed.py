"""What a decision leaves behind: nothing that only Python's search for cycles would free."""

import gc
import weakref

from apps.scheduling.policy.decide import Planner
from tests.unit.scheduling.worlds import NOW, card, node, task, world


def test_a_decision_is_freed_without_a_search_for_cycles():
    """The loop pauses those while it runs, and would pay for one over all its values at its end."""
    planner = Planner(world([task(1), task(2, gpu_required=9)], [node(1, card(1), card(2))]))
    planner.portion(2, NOW)
    board = weakref.ref(planner._board)
    gc.disable()
    try:
        del planner
        assert board() is None
    finally:
        gc.enable()
