"""What the recovery loop does: move work off lost nodes, rebuild, end waits that took too long."""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Phase, State, TaskType
from apps.core.leases import Held, LeaseLost
from apps.fleet.models import Liveness, Node
from apps.fleet.selectors import is_online, silent_before
from apps.tenants.models import TenantStatus
from apps.workloads.models import Claim, Task
from apps.workloads.policy.moves import RUNS_ON_NODE, WAITING, Wait, is_wake_requested, waiting_for
from apps.workloads.services.leaving import stop_one
from apps.workloads.services.reporting import (
    ASLEEP_FIELDS,
    last_error,
    live_claim,
    move_off,
    rebuild_after,
    release,
)
from apps.workloads.services.sleeping import call_back, wake_sleeper
from apps.workloads.state import lock_groups, move_of, transition

log = logging.getLogger("heteroflow.recovery")
ACTOR = "recovery"


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
    """Move the work of silent nodes elsewhere (RECOV-02), and what sleeps there and was asked to wake
    (SLEEP-04); what is just falling asleep there sleeps. Claims stay: what still runs there holds
    its card until the node is back and says that it is gone; what nobody took on is freed."""
    nodes = {node.pk: node for node in Node.objects.select_related("liveness").filter(pk__in=node_ids)}
    wanted = Q(state__in=RUNS_ON_NODE) | Q(state=State.SLEEPING, desired=Desired.RUN)
    placed = Task.objects.filter(wanted, node__in=nodes).order_by("pk")

    def mend(task: Task) -> bool:
        waits_to_wake = is_wake_requested(State(task.state), Desired(task.desired))
        if task.node_id not in nodes or not (task.state in RUNS_ON_NODE or waits_to_wake):
            return False
        node = nodes[task.node_id]
        seen = node.liveness.last_seen_at
        silent_s = int((now - seen).total_seconds()) if seen else None
        claim = live_claim(task)
        if claim is not None and claim.incarnation == "" and not _is_to_sleep_on(task):
            release(claim, now=now)
        why = reason(Code.NODE_LOST, node=node.name, silent_s=silent_s)
        return move_off(task, why, actor=ACTOR, now=now)

    return each_task(lease, list(placed.values_list("pk", flat=True)), mend)


def wake_waiting(*, lease: Held, now: datetime) -> int:
    """Wake sleeping tasks that were asked to and could not: their node is back, or their loan has ended
    (SLEEP-04, -05). Those of suspended tenants sleep on. Answers how many moved."""
    asked = Task.objects.filter(state=State.SLEEPING, desired=Desired.RUN, group__deleted_at__isnull=True)
    asked = asked.exclude(group__tenant__status=TenantStatus.SUSPENDED)

    def mend(task: Task) -> bool:
        if not is_wake_requested(State(task.state), Desired(task.desired)):
            return False
        return task.state == State.SLEEPING and wake_sleeper(task, ACTOR, now).moved

    return each_task(lease, list(asked.order_by("pk").values_list("pk", flat=True)), mend)


def _is_to_sleep_on(task: Task) -> bool:
    return task.state == State.DRAINING and task.desired != Desired.STOP


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
    wanted = failed.exclude(desired=Desired.STOP)
    waiting = wanted.filter(~Exists(held), group__task_type=TaskType.INFERENCE)
    ids = {
        *leaving.values_list("pk", flat=True),
        *waiting.exclude(reason_code=Code.REBUILDS_SPENT).values_list("pk", flat=True),
    }

    def mend(task: Task) -> bool:
        if task.state != State.FAILED:
            return False
        if task.desired == Desired.STOP:
            move = move_of(task, State.STOPPED, reason(Code.STOP_CONFIRMED), phase=Phase.NONE)
            return transition(move, actor=ACTOR, now=now)
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
        return transition(move, actor=ACTOR, now=now)

    return each_task(lease, sorted(ids), mend)


def expire_deadlines(
    *, lease: Held, now: datetime, last_lines: Callable[[Task], list[str]] = lambda _: []
) -> int:
    """End waits whose deadline is past, as the table says (`WAITING`). A task that fails keeps its claim, so
    that nothing starts on a card still in use, and the last lines of its log, which `last_lines` reads."""
    late = Task.objects.filter(deadline_at__lt=now).order_by("pk").values_list("pk", flat=True)

    def mend(task: Task) -> bool:
        waiting = waiting_for(State(task.state), Phase(task.phase), Desired(task.desired))
        if task.deadline_at is None or task.deadline_at >= now or waiting is None:
            return False
        if task.state == State.STOPPING and not _is_heard(task, now):
            return False  # it can confirm nothing; the stop holds until it is back
        wait = WAITING[waiting]
        why = _lateness(task, wait, now)
        match wait.to:
            case State.FAILED:
                return _fail(task, why, now, last_lines)
            case State.STOPPING:
                return stop_one(task, ACTOR, why, now)
            case State.RUNNING:
                return call_back(task, ACTOR, now)
            case State.SLEEPING:
                asleep = move_of(task, State.SLEEPING, why, phase=Phase.NONE, **ASLEEP_FIELDS)
                return transition(asleep, actor=ACTOR, now=now)
        return False

    return each_task(lease, list(late), mend)


def _lateness(task: Task, wait: Wait, now: datetime) -> Reason:
    if wait.code is None:
        return Reason(Code(task.reason_code), task.reason_params)
    waited_s = int((now - task.state_since).total_seconds())
    return Reason(wait.code, {"after_s": waited_s, "why": "its node says nothing of it"})


def _fail(task: Task, why: Reason, now: datetime, last_lines: Callable[[Task], list[str]]) -> bool:
    error = last_error(why, None, now) | {"log_lines": last_lines(task)}
    failed = move_of(task, State.FAILED, why, phase=Phase.LEAVING, last_error=error)
    if not transition(failed, actor=ACTOR, now=now):
        return False
    claim = live_claim(task)
    if claim is not None and claim.incarnation == "":
        release(claim, now=now)
    return True


def _is_heard(task: Task, now: datetime) -> bool:
    seen = Liveness.objects.filter(node__tasks=task).values_list("last_seen_at", flat=True).first()
    return is_online(seen, now)
