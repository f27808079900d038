"""Fill what is begun, keep what is whole: nodes and cards with little left over come first.

Work without cards goes to nodes without cards, so that those with cards keep their processors.
"""

from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import score_plugin
from apps.scheduling.policy.snapshot import TaskView


@score_plugin("binpack")
def measure(task: TaskView, node: NodeRoom, cards: list[CardRoom]) -> float:
    if not task.gpu_required:
        return 0.0 if node.cards else 1.0
    begun = sum(1 for card in node.cards if card.holds) / len(node.cards)
    shared = sum(card.promised_percent for card in cards) / (100 * len(cards))
    left = sum(card.free_mb or 0 for card in cards)
    total = sum(card.view.vram_total_mb or 0 for card in cards)
    tight = 1 - left / total if total else 0.0
    return (begun + shared + tight) / 3
