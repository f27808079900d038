"""A card that holds a tenant which shares no group with this one is out of bounds (SCHED-09)."""

from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("red_line", order=70)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    # Told as cards that are not free, without the other tenant or what it holds (SVC-14): `commitment`
    # counts what is left.
    return [
        card
        for card in cards
        if all(snapshot.may_share(task.tenant_id, hold.tenant_id) for hold in card.holds)
    ]
