"""A card that holds a tenant which shares no group with this one is out of bounds (SCHED-09)."""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("red_line", order=70)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    left = [
        card
        for card in cards
        if all(snapshot.may_share(task.tenant_id, hold.tenant_id) for hold in card.holds)
    ]
    wanted = task.gpu_required
    if len(left) < wanted:
        # Told without naming the other tenant or what it holds (SVC-14).
        return Refused(Code.CARDS_SHORT, {"wanted": wanted, "free": len(left)}, wanted - len(left))
    return left
