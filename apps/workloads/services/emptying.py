"""Taking work off a node: moved onto a place that is known, or cleared with the node itself (LIFE-09)."""

from datetime import datetime

from agent.contract.codes import Code, reason
from agent.contract.states import Phase, State
from apps.core import hints
from apps.core.leases import Held
from apps.fleet.models import Card, Node
from apps.workloads.models import Claim, Task
from apps.workloads.services.placing import Placement, PlacementClash, commit_placements
from apps.workloads.services.reporting import end_attempt, release
from apps.workloads.state import lock_groups, move_of, transition

_MOVABLE = frozenset({State.SCHEDULING, State.RUNNING})


def move_task(*, lease: Held, placement: Placement, now: datetime) -> bool:
    """Take a task off its node and place it elsewhere, in one transaction: both, or it stays and goes
    on. Its old attempt ends as its node is told; a new one begins at `placement`.

    False where the task has gone on meanwhile. Raises PlacementClash and LeaseLost.
    """
    with lease.transaction():
        # In the order of everybody else: cards, then groups.
        list(Card.objects.select_for_update().filter(pk__in=placement.cards).order_by("pk"))
        lock_groups([placement.task_id])
        task = Task.objects.select_related("group", "node").filter(pk=placement.task_id).first()
        if task is None or task.node is None or task.version != placement.version:
            return False
        if task.state not in _MOVABLE or task.node_id == placement.node_id:
            return False
        old_node = task.node
        old = (
            Claim.objects.select_related("task__group")
            .filter(task=task, attempt=task.attempt, released_at__isnull=True)
            .first()
        )
        leaving = move_of(
            task,
            State.PENDING,
            reason(Code.NODE_DRAINING, node=old_node.name),
            phase=Phase.NONE,
            node_id=None,
            running_since=None,
        )
        if not transition(leaving, actor="upkeep", now=now):
            return False
        anew = Placement(
            task_id=placement.task_id,
            version=placement.version + 1,
            node_id=placement.node_id,
            cards=placement.cards,
            percent=placement.percent,
            host_ports=placement.host_ports,
        )
        if not commit_placements(lease=lease, placements=[anew], now=now):
            raise PlacementClash
        if old is not None and old.incarnation == "":
            release(old, now=now)  # no run of an agent took it on: nothing exists there
        hints.look(old_node.public_id)
        hints.look(Node.objects.values_list("public_id", flat=True).get(pk=placement.node_id))
    return True


def clear_node(*, node: Node, by: str, now: datetime) -> int:
    """Release every claim on a node that is about to go, and move its tasks on; answers how many.
    Call inside the transaction that removes the node."""
    held = Claim.objects.filter(node=node, released_at__isnull=True).order_by("pk")
    why = reason(Code.NODE_REMOVED, node=node.name)
    return sum(end_attempt(claim, why, now=now, actor=by) for claim in list(held))
