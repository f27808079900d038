"""Enough free memory on each card, strangers' use included (SCHED-04).

A promise must be free as a whole: an engine that is told "40 percent" takes them at its start. Its
reserve stands in the commitment. An estimate must fit beside both reserves, and within the promise
where there is one. A card that does not tell its memory is never taken for an empty one.
"""

from agent.contract.codes import Code
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("memory", order=100)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    left, unknown, nearest = [], 0, (float("inf"), 0, 0)
    for card in cards:
        wanted_mb, free_mb = needed(task, card)
        if free_mb is None:
            unknown += 1
        elif wanted_mb <= free_mb:
            left.append(card)
        else:
            nearest = min(nearest, (wanted_mb - free_mb, wanted_mb, free_mb))
    if len(left) >= task.gpu_required:
        return left
    if unknown and len(left) + unknown >= task.gpu_required:
        return Refused(Code.VRAM_UNKNOWN)
    shortfall, wanted, free = nearest
    return Refused(Code.VRAM_SHORT, {"wanted_mb": wanted, "free_mb": free}, shortfall)


def needed(task: TaskView, card: CardRoom) -> tuple[int, int | None]:
    """(MB that the task needs on this card, MB there for it or None where that is not known).

    Without promise and estimate the need is not known: then 1 MB beyond the reserves is asked for,
    so that a card full of a stranger's memory is not taken.
    """
    total = card.view.vram_total_mb
    estimate = None if task.memory_mb is None else -(-task.memory_mb // max(1, task.gpu_required))
    if task.whole_cards or task.percent is None:
        return max(1, estimate or 1), card.free_mb
    if total is None or card.unpromised_mb is None:
        return 0, None
    promise = total * task.percent // 100
    if estimate is not None and estimate > promise:
        return estimate, min(promise, card.unpromised_mb)
    return promise, card.unpromised_mb
