"""Taking work off a node (LIFE-09): a second task beside one that serves, the choice between the two, a
move of what does not serve yet, an eviction by an operator's word, or clearing with the node itself.

Decides nothing: who is replaced when, and which of a pair stays, is upkeep's.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Exists, F, OuterRef, QuerySet
from msgspec.structs import replace

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State
from apps.core import hints
from apps.core.leases import Held
from apps.fleet.models import Card, Duty, Node
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.moves import CLAIMABLE, ENDED, SERVING
from apps.workloads.services.creating import add_like, free_rank
from apps.workloads.services.ending import release_untaken, take_off
from apps.workloads.services.leaving import stop_one
from apps.workloads.services.mending import each_task
from apps.workloads.services.placing import Placement, PlacementClash, commit_placements
from apps.workloads.services.reporting import end_attempt, note_moments
from apps.workloads.state import derive_again, lock_groups, move_of, transition

ACTOR = "upkeep"


def begin_replacement(*, lease: Held, placement: Placement, now: datetime) -> bool:
    """Make a second task beside the one that `placement` names, and place it there: both, or neither.
    It belongs to the same group, so to the same creator; a pair counts as one in quotas.

    False where the task has gone on meanwhile. Raises PlacementClash and LeaseLost.
    """
    with lease.transaction():
        _lock(placement)
        old = Task.objects.select_related("group", "node").filter(pk=placement.task_id).first()
        if old is None or old.node is None or old.version != placement.version:
            return False
        if not _may_be_replaced(old) or old.node_id == placement.node_id:
            return False
        why = reason(Code.REPLACEMENT_CREATED, node=old.node.name)
        new = add_like(old, by=ACTOR, why=why, now=now, replaces=old)
        placed = replace(placement, task_id=new.pk, version=new.version)
        if not commit_placements(lease=lease, placements=[placed], now=now):
            raise PlacementClash
        _look(placement.node_id)
    return True


def _lock(placement: Placement) -> None:
    """In the order of everybody else (`ledger.py`): nodes, cards, groups."""
    list(Node.objects.select_for_update(no_key=True).filter(pk=placement.node_id))
    list(Card.objects.select_for_update(no_key=True).filter(pk__in=placement.cards).order_by("pk"))
    lock_groups([placement.task_id])


def _may_be_replaced(old: Task) -> bool:
    alone = old.replaces_id is None and not Task.objects.filter(replaces=old).exists()
    wanted = old.desired == Desired.RUN and old.retired_at is None and old.group.deleted_at is None
    leaving = old.node is not None and old.node.duty != Duty.SERVICE
    return alone and wanted and leaving and old.state == State.RUNNING


def settle_pair(*, lease: Held, old: Task, new: Task, keep_new: bool, now: datetime) -> bool:
    """End a pair: one of the two stays, under the rank that the group knows; the other leaves the routes,
    gets DRAIN_DEADLINE_S for its running calls where it serves, is stopped, and removed when its node has
    confirmed the end.

    False where either has gone on since it was read. Raises LeaseLost.
    """
    with lease.transaction():
        lock_groups([old.pk])
        rows = Task.objects.select_related("group", "node").in_bulk([old.pk, new.pk])
        if any(_picture(rows.get(task.pk)) != _picture(task) for task in (old, new)):
            return False
        left, where = (old, old.node) if keep_new else (new, new.node)
        Task.objects.filter(pk=new.pk).update(replaces=None)
        Task.objects.filter(pk=left.pk).update(retired_at=now)
        if keep_new:
            Task.objects.filter(pk=old.pk).update(rank=free_rank(old))
            Task.objects.filter(pk=new.pk).update(rank=old.rank)
        code = Code.NODE_DRAINING if keep_new else Code.REPLACEMENT_DROPPED
        _let_go(rows[left.pk], reason(code, node=where.name if where else "-"), now)
    return True


def _picture(task: Task | None) -> tuple[object, ...] | None:
    if task is None:
        return None
    deleted = task.group.deleted_at is not None
    return task.version, task.state, task.phase, task.desired, task.replaces_id, task.retired_at, deleted


def _let_go(task: Task, why: Reason, now: datetime) -> None:
    if task.state == State.RUNNING:
        leaving = move_of(task, State.DRAINING, why, desired=Desired.STOP, phase=Phase.LEAVING)
        transition(leaving, actor=ACTOR, now=now)
    else:
        stop_one(task, ACTOR, why, now)


def end_drained(*, lease: Held, now: datetime) -> int:
    """Stop retired tasks that have had their time for running calls; answers how many."""
    since = now - timedelta(seconds=settings.DRAIN_DEADLINE_S)
    late = Task.objects.filter(retired_at__isnull=False, state=State.DRAINING, state_since__lte=since)

    def stop(task: Task) -> bool:
        why = Reason(Code(task.reason_code), task.reason_params)
        return task.state == State.DRAINING and stop_one(task, ACTOR, why, now)

    return each_task(lease, list(late.order_by("pk").values_list("pk", flat=True)), stop)


def remove_retired(*, lease: Held, now: datetime, before: Callable[[QuerySet[Claim]], object] = list) -> int:
    """Remove retired tasks that hold nothing on any node; their events stay with the group. `before` gets the
    claims that go along, in the same transaction."""
    held = Claim.objects.filter(task=OuterRef("pk"), released_at__isnull=True)
    gone = Task.objects.filter(~Exists(held), retired_at__isnull=False, state__in=ENDED)

    def remove(task: Task) -> bool:
        busy = Claim.objects.filter(task=task, released_at__isnull=True).exists()
        if busy or task.state not in ENDED:
            return False
        before(Claim.objects.filter(task=task))
        Event.objects.filter(task=task).update(task=None)
        task.delete()
        derive_again(task.group_id, now)
        return True

    return each_task(lease, list(gone.order_by("pk").values_list("pk", flat=True)), remove)


def move_task(*, lease: Held, placement: Placement, now: datetime) -> bool:
    """Take a task that serves nobody yet off its node and place it elsewhere, in one transaction: both, or
    it stays and goes on. Its old attempt ends as its node is told; a new one begins at `placement`.

    False where the task has gone on meanwhile. Raises PlacementClash and LeaseLost.
    """
    with lease.transaction():
        _lock(placement)
        task = Task.objects.select_related("group", "node").filter(pk=placement.task_id).first()
        if task is None or task.node is None or task.version != placement.version:
            return False
        if task.state not in CLAIMABLE or task.node_id == placement.node_id:
            return False
        why = reason(Code.NODE_DRAINING, node=task.node.name)
        if not take_off(task, why, actor=ACTOR, now=now):
            return False
        anew = replace(placement, version=placement.version + 1)
        if not commit_placements(lease=lease, placements=[anew], now=now):
            raise PlacementClash
        _look(placement.node_id)
    return True


def evict_task(*, lease: Held, task: Task, now: datetime) -> bool:
    """Stop a task where it is and let it wait for another place (an operator's word): training and
    containers begin anew there. False where it has gone on meanwhile. Raises LeaseLost."""
    with lease.transaction():
        lock_groups([task.pk])
        fresh = Task.objects.select_related("group", "node").filter(pk=task.pk).first()
        if fresh is None or fresh.node is None or fresh.version != task.version:
            return False
        why = reason(Code.NODE_FORCED, node=fresh.node.name)
        if fresh.state not in SERVING or not take_off(fresh, why, actor=ACTOR, now=now):
            return False
        hints.kick("scheduling.place")
    return True


def unplace_sleeper(*, lease: Held, task: Task, now: datetime) -> bool:
    """Take what sleeps off its node: it sleeps on without a place, and its wake is a new placement. What its
    node keeps of it goes, and with that its card, ports and any loan. Raises LeaseLost."""
    with lease.transaction():
        lock_groups([task.pk])
        fresh = Task.objects.select_related("group", "node").filter(pk=task.pk).first()
        if fresh is None or fresh.node is None or fresh.version != task.version:
            return False
        if fresh.state != State.SLEEPING or fresh.desired != Desired.SLEEP:
            return False
        unplace(fresh, reason(Code.ASLEEP_NO_PLACE, node=fresh.node.name), by=ACTOR, now=now)
    return True


def unplace(task: Task, why: Reason, *, by: str, now: datetime, **fields: Any) -> None:
    """Let what sleeps sleep on without a place. Holds the group's lock."""
    Task.objects.filter(pk=task.pk).update(
        node=None, reason_code=why.code, reason_params=why.params, version=F("version") + 1, **fields
    )
    note_moments(task, [why], by=by, now=now)
    release_untaken(task, now=now)
    if task.node is not None:
        hints.look(task.node.public_id)


def _look(node_id: int) -> None:
    hints.look(Node.objects.values_list("public_id", flat=True).get(pk=node_id))


def clear_node(*, node: Node, by: str, now: datetime) -> int:
    """Release every claim on a node that is about to go, and move its tasks on; answers how many.
    Call inside the transaction that removes the node."""
    held = Claim.objects.filter(node=node, released_at__isnull=True).order_by("pk")
    why = reason(Code.NODE_REMOVED, node=node.name)
    return sum(end_attempt(claim, why, now=now, actor=by) for claim in list(held))
