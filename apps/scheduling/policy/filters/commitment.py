"""Promises on a card stay within 100 less the reserve; without a promise the card is taken alone
(SCHED-05); several cards are always whole ones (SCHED-07)."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("commitment", order=90)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    if task.whole_cards or task.percent is None:
        left = [card for card in cards if not card.holds]
    else:
        left = [card for card in cards if card.largest_promise >= task.percent]
    wanted = task.gpu_required
    if len(left) < wanted:
        return Refused(Code.CARDS_SHORT, {"wanted": wanted, "free": len(left)}, wanted - len(left))
    return left
