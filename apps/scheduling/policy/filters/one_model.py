"""Several cards for one engine are of one vendor and model (SCHED-07)."""

from collections import Counter

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("one_model", order=110)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    wanted = task.gpu_required
    if wanted <= 1:
        return cards
    counts = Counter((card.view.vendor, card.view.model) for card in cards)
    # the least plentiful kind that suffices leaves the larger set whole; by name where they tie
    fitting = sorted((count, kind) for kind, count in counts.items() if count >= wanted)
    if not fitting:
        most = max(counts.values(), default=0)
        return Refused(Code.CARDS_SHORT, {"wanted": wanted, "free": most}, wanted - most)
    chosen = fitting[0][1]
    return [card for card in cards if (card.view.vendor, card.view.model) == chosen]
