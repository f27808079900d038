"""What recovery does with single tasks: rebuild and retry, wake what waits, end what took too long."""

import logging
from collections.abc import Callable, Collection, Iterable
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.conf import settings
from django.db.models import Exists, OuterRef

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core.leases import Held, LeaseLost
from apps.fleet.models import Liveness
from apps.fleet.selectors import NodeRow, is_online, placement_rows, silent_before
from apps.tenants.models import TenantStatus
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.moves import WAITING, Wait, waiting_for
from apps.workloads.policy.rebuilding import GIVEN_UP, NODE_FAULTS, Failure, Step, decide
from apps.workloads.policy.templates import Template, pick
from apps.workloads.services.ending import ASLEEP_FIELDS, last_error, rebuild_after, release_untaken
from apps.workloads.services.leaving import stop_one
from apps.workloads.services.reporting import run_timeout_s
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


def wake_waiting(*, lease: Held, now: datetime) -> int:
    """Wake sleeping tasks that were asked to and could not: their node is back, or their loan has ended
    (SLEEP-04, -05), in the order in which they were asked. Those of suspended tenants sleep on. Answers how
    many moved."""
    asked = Task.objects.filter(state=State.SLEEPING, desired=Desired.RUN, group__deleted_at__isnull=True)
    asked = asked.exclude(group__tenant__status=TenantStatus.SUSPENDED)

    def mend(task: Task) -> bool:
        waits = task.state == State.SLEEPING and task.desired == Desired.RUN
        return waits and wake_sleeper(task, ACTOR, now).moved

    return each_task(lease, list(asked.order_by("wake_asked_at", "pk").values_list("pk", flat=True)), mend)


def rebuild_failed(*, lease: Held, now: datetime) -> int:
    """Give failed tasks a new place: inference by the rules of `policy/rebuilding.py`, other work RUN_RETRIES
    times (RECOV-01, RECOV-03, LIFE-07); what was asked to stop meanwhile is stopped. Only once the failed
    attempt is gone from its node, unless that node is silent itself."""
    held = Claim.objects.filter(
        task=OuterRef("pk"),
        attempt=OuterRef("attempt"),
        released_at__isnull=True,
        node__liveness__last_seen_at__gte=silent_before(now),
    )
    anywhere = Claim.objects.filter(task=OuterRef("pk"), released_at__isnull=True)
    failed = Task.objects.filter(state=State.FAILED)
    leaving = failed.filter(~Exists(anywhere), desired=Desired.STOP)
    waiting = failed.filter(~Exists(held)).exclude(desired=Desired.STOP)
    services = waiting.filter(group__task_type=TaskType.INFERENCE).exclude(reason_code__in=GIVEN_UP)
    runs = waiting.exclude(group__task_type=TaskType.INFERENCE).filter(rebuilds__lt=settings.RUN_RETRIES)
    ended = Task.objects.filter(group=OuterRef("group"), state=State.COMPLETED)
    runs = runs.exclude(Exists(ended), group__parallelism=Parallelism.PIPELINE_PARALLEL)
    ids = {
        *leaving.values_list("pk", flat=True),
        *services.values_list("pk", flat=True),
        *runs.exclude(reason_code__in=(Code.RUN_TIMEOUT, Code.STAGE_GIVEN_UP)).values_list("pk", flat=True),
    }
    places = _Places(now)

    def mend(task: Task) -> bool:
        if task.state != State.FAILED:
            return False
        if task.desired == Desired.STOP:
            move = move_of(task, State.STOPPED, reason(Code.STOP_CONFIRMED), phase=Phase.NONE)
            return transition(move, actor=ACTOR, now=now)
        if task.group.task_type != TaskType.INFERENCE:
            retry = task.rebuilds + 1
            why = reason(Code.RETRY, retry=retry, max=settings.RUN_RETRIES)
            return _place_anew(task, why, now, rebuilds=retry, not_before=_after(retry, now))
        return _mend_service(task, places, now)

    return each_task(lease, sorted(ids), mend)


class _Places:
    """Which nodes could take a task at all, read once and only when asked."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    @cached_property
    def _nodes(self) -> list[NodeRow]:
        return [
            row for row in placement_rows() if is_online(row.last_seen_at, self._now) and not row.cordoned
        ]

    def is_left(self, task: Task, refused: Collection[str]) -> bool:
        """Whether a node is left that has not refused it: where it may go, with cards enough."""
        return any(
            row.public_id not in refused
            and (row.open_to is None or task.group.tenant_id in row.open_to)
            and sum(card.present for card in row.cards) >= task.gpu_required
            for row in self._nodes
        )


def _mend_service(task: Task, places: _Places, now: datetime) -> bool:
    code, chain = task.reason_code, task.group.inference_templates
    here = {task.node.public_id: code} if task.node is not None else {}
    refused = {**task.node_refusals, **here}
    failure = Failure(
        code=code,
        ran=task.running_since is not None,
        rebuild=rebuild_after(task, now),
        template=min(task.template_index, len(chain)),
        templates=len(chain),
        elsewhere=code in NODE_FAULTS and places.is_left(task, refused),
    )
    mend = decide(failure)
    node = task.node.name if task.node is not None else "-"
    if mend.step is Step.NEXT_TEMPLATE:
        before, after = _image_at(task, failure.template), _image_at(task, mend.template)
        why = Reason(Code.TEMPLATE_NEXT, {"from": before, "to": after, **_why(task)})
        return _place_anew(task, why, now, template_index=mend.template, node_refusals={})
    if mend.step is Step.NEXT_NODE:
        why = reason(Code.NEXT_NODE, node=node, **_why(task))
        return _place_anew(task, why, now, node_refusals=refused)
    if mend.step is Step.GIVE_UP or failure.rebuild is None:
        return _give_up(task, mend.code, {"max": settings.REBUILD_MAX, "templates": len(chain) + 1}, now)
    fields = {"rebuilds": failure.rebuild, "template_index": mend.template}
    why = reason(Code.REBUILD, rebuild=failure.rebuild, max=settings.REBUILD_MAX)
    return _place_anew(task, why, now, not_before=_after(failure.rebuild, now), **fields)


def _why(task: Task) -> dict[str, Any]:
    """Why it failed, to be told within another reason (texts_recovery.py). A node's name is told where names
    out of sight are hidden only."""
    told = {f"why_{name}": value for name, value in task.reason_params.items() if name != "node"}
    return {"why": task.reason_code, **told}


def _image_at(task: Task, index: int) -> str:
    return pick(Template(task.image), task.group.inference_templates, index).image


def _after(number: int, now: datetime) -> datetime:
    """When the back-off before a task's rebuild or retry of that number is over."""
    return now + timedelta(seconds=settings.REBUILD_DELAY_S * 2 ** (number - 1))


def _place_anew(task: Task, why: Reason, now: datetime, **fields: Any) -> bool:
    free = {"phase": Phase.NONE, "node_id": None, "running_since": None, "desired": Desired.RUN}
    return transition(move_of(task, State.PENDING, why, **free, **fields), actor=ACTOR, now=now)


def _give_up(task: Task, code: Code, params: dict[str, Any], now: datetime) -> bool:
    """It stays failed, and says so in its reason and in an event."""
    params = {**params, **_why(task)}
    Event.objects.create(
        group=task.group, task=task, attempt=task.attempt, code=code, params=params, actor=ACTOR, at=now
    )
    spent = {"reason_code": code, "reason_params": params}
    return bool(Task.objects.filter(pk=task.pk, state=State.FAILED).update(**spent))


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
    if wait.code == Code.RUN_TIMEOUT:
        return reason(Code.RUN_TIMEOUT, after_s=run_timeout_s(task))
    waited_s = int((now - task.state_since).total_seconds())
    return Reason(wait.code, {"after_s": waited_s, "why": Code.NODE_SAYS_NOTHING})


def _fail(task: Task, why: Reason, now: datetime, last_lines: Callable[[Task], list[str]]) -> bool:
    error = last_error(why, None, now) | {"log_lines": last_lines(task)}
    failed = move_of(task, State.FAILED, why, phase=Phase.LEAVING, last_error=error)
    if not transition(failed, actor=ACTOR, now=now):
        return False
    release_untaken(task, now=now)
    return True


def _is_heard(task: Task, now: datetime) -> bool:
    seen = Liveness.objects.filter(node__tasks=task).values_list("last_seen_at", flat=True).first()
    return is_online(seen, now)
