"""Inference and other work never share a card (SCHED-08)."""

from agent.contract.states import TaskType
from apps.scheduling.policy.capacity import CardRoom, NodeRoom
from apps.scheduling.policy.registry import Refused, filter_plugin
from apps.scheduling.policy.snapshot import Snapshot, TaskView


@filter_plugin("kinds", order=80)
def check(
    task: TaskView, node: NodeRoom, cards: list[CardRoom], snapshot: Snapshot
) -> list[CardRoom] | Refused:
    inference = task.task_type == TaskType.INFERENCE
    # `commitment` counts what is left.
    return [card for card in cards if all(hold.inference == inference for hold in card.holds)]
