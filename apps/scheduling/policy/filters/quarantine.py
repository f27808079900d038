"""A card in quarantine takes nothing: memory of an ended attempt is still held there (AGENT-06)."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("quarantine", order=75)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    left = [card for card in cards if not card.view.quarantined]
    if len(left) < task.gpu_required and len(left) < len(cards):
        return Refused(Code.CARD_QUARANTINED, {"cards": len(cards) - len(left)})
    return left
