"""Reads on behalf of one node: never another node's things."""

from collections.abc import Iterable

from apps.fleet.models import Liveness, Node
from apps.workloads.models import Claim, Task


def newest_incarnation(node: Node) -> str:
    """The run of the agent that speaks for the node; "" before its first heartbeat."""
    return Liveness.objects.filter(node=node).values_list("incarnation", flat=True).first() or ""


def held_task(node: Node, task_id: str, attempt: int) -> Task | None:
    """The task whose attempt this node holds or held; None for another node's and for no task."""
    claim = (
        Claim.objects.select_related("task")
        .filter(node=node, task__public_id=task_id, attempt=attempt)
        .first()
    )
    return None if claim is None else claim.task


def held_attempts(node: Node, task_ids: Iterable[str]) -> set[tuple[str, int]]:
    """Which attempts of these tasks this node holds or held."""
    held = Claim.objects.filter(node=node, task__public_id__in=set(task_ids))
    return set(held.values_list("task__public_id", "attempt"))
