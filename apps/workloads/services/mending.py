"""What the recovery loop does: move work off lost nodes, rebuild, end waits that took too long."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core.leases import Held, LeaseLost
from apps.fleet.models import Liveness, Node
from apps.fleet.selectors import is_online, silent_before
from apps.workloads.models import Claim, Task
from apps.workloads.policy.moves import RUNS_ON_NODE
from apps.workloads.services.reporting import last_error, move_off, rebuild_after, release
from apps.workloads.state import lock_groups, move_of, transition

log = logging.getLogger("heteroflow.recovery")


def each_task(lease: Held, ids: Iterable[int], mend: Callable[[Task], bool]) -> int:
    """Mend task by task, each in its own transaction of the lease holder: a task that raises is
    logged and the rest go on (RECOV-05). Answers how many were mended."""
    mended = 0
    for task_id in ids:
        try:
            with lease.transaction():
                lock_groups([task_id])
                task = Task.objects.select_related("group", "node").filter(pk=task_id).first()
                mended += bool(task is not None and mend(task))
        except LeaseLost:
            raise
        except Exception:
            log.exception("task row %s could not be mended; the others go on", task_id)
    return mended


def lose_nodes(*, lease: Held, node_ids: Iterable[int], now: datetime) -> int:
    """Move the work of silent nodes elsewhere (RECOV-02). Claims stay: what still runs there holds
    its card until the node is back and says that it is gone; what nobody took on is freed."""
    nodes = {node.pk: node for node in Node.objects.select_related("liveness").filter(pk__in=node_ids)}
    placed = Task.objects.filter(node__in=nodes, state__in=RUNS_ON_NODE).order_by("pk")

    def mend(task: Task) -> bool:
        if task.node_id not in nodes or task.state not in RUNS_ON_NODE:
            return False
        node = nodes[task.node_id]
        seen = node.liveness.last_seen_at
        silent_s = int((now - seen).total_seconds()) if seen else None
        claim = Claim.objects.filter(task=task, attempt=task.attempt, released_at__isnull=True).first()
        if claim is not None and claim.incarnation == "":
            release(claim, now=now)
        why = reason(Code.NODE_LOST, node=node.name, silent_s=silent_s)
        return move_off(task, why, actor="recovery", now=now)

    return each_task(lease, list(placed.values_list("pk", flat=True)), mend)


def rebuild_failed(*, lease: Held, now: datetime) -> int:
    """Give failed inference tasks a new place, at most REBUILD_MAX times (RECOV-01); what was asked
    to stop meanwhile is stopped. Only once the failed attempt is gone from its node, unless that
    node is silent itself."""
    held = Claim.objects.filter(
        task=OuterRef("pk"),
        attempt=OuterRef("attempt"),
        released_at__isnull=True,
        node__liveness__last_seen_at__gte=silent_before(now),
    )
    anywhere = Claim.objects.filter(task=OuterRef("pk"), released_at__isnull=True)
    failed = Task.objects.filter(state=State.FAILED)
    leaving = failed.filter(~Exists(anywhere), desired=Desired.STOP)
    waiting = failed.filter(~Exists(held), desired=Desired.RUN, group__task_type=TaskType.INFERENCE)
    ids = {
        *leaving.values_list("pk", flat=True),
        *waiting.exclude(reason_code=Code.REBUILDS_SPENT).values_list("pk", flat=True),
    }

    def mend(task: Task) -> bool:
        if task.state != State.FAILED:
            return False
        if task.desired == Desired.STOP:
            move = move_of(task, State.STOPPED, reason(Code.STOP_CONFIRMED), phase=Phase.NONE)
            return transition(move, actor="recovery", now=now)
        rebuild = rebuild_after(task, now)
        if rebuild is None:
            spent = {"reason_code": Code.REBUILDS_SPENT, "reason_params": {"max": settings.REBUILD_MAX}}
            return bool(Task.objects.filter(pk=task.pk, state=State.FAILED).update(**spent))
        back_off = timedelta(seconds=settings.REBUILD_DELAY_S * 2 ** (rebuild - 1))
        move = move_of(
            task,
            State.PENDING,
            reason(Code.REBUILD, rebuild=rebuild, max=settings.REBUILD_MAX),
            phase=Phase.NONE,
            node_id=None,
            rebuilds=rebuild,
            running_since=None,
            not_before=now + back_off,
        )
        return transition(move, actor="recovery", now=now)

    return each_task(lease, sorted(ids), mend)


def expire_deadlines(*, lease: Held, now: datetime) -> int:
    """End waits whose deadline is past: nobody took the task on, it never got ready, or its node did
    not confirm a stop (the claim then stays, so that nothing starts on a card still in use)."""
    late = Task.objects.filter(deadline_at__lt=now).order_by("pk").values_list("pk", flat=True)

    def mend(task: Task) -> bool:
        if task.deadline_at is None or task.deadline_at >= now:
            return False
        if task.state == State.STOPPING and not _is_heard(task, now):
            return False  # it can confirm nothing; the stop holds until it is back
        claim = (
            Claim.objects.select_related("task__group")
            .filter(task=task, attempt=task.attempt, released_at__isnull=True)
            .first()
        )
        why = _lateness(task, claim, now)
        move = move_of(task, State.FAILED, why, phase=Phase.LEAVING, last_error=last_error(why, None, now))
        if not transition(move, actor="recovery", now=now):
            return False
        if claim is not None and claim.incarnation == "":
            release(claim, now=now)
        return True

    return each_task(lease, list(late), mend)


def _is_heard(task: Task, now: datetime) -> bool:
    seen = Liveness.objects.filter(node__tasks=task).values_list("last_seen_at", flat=True).first()
    return is_online(seen, now)


def _lateness(task: Task, claim: Claim | None, now: datetime) -> Reason:
    if task.state == State.STOPPING:
        return reason(Code.STOP_UNCONFIRMED, after_s=settings.STOP_DEADLINE_S)
    if claim is None or claim.incarnation == "":
        return reason(Code.START_TIMEOUT, after_s=settings.CLAIM_DEADLINE_S)
    waited_s = int((now - task.state_since).total_seconds())
    return reason(Code.LOAD_TIMEOUT, after_s=waited_s, why="its node says nothing of it")
