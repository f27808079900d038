"""Pipelines whose stages have come apart are brought in line again (PAR-03): all start, fail or sleep
together.

Owns how that is written; what follows from what stands in `policy/pipelines.py`. Places nothing.
"""

from datetime import datetime

from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core import hints
from apps.core.leases import Held
from apps.workloads.models import Task
from apps.workloads.policy.pipelines import HEAD, Member, Step, keep_together
from apps.workloads.policy.rebuilding import GIVEN_UP
from apps.workloads.selectors import stages_of
from apps.workloads.services.ending import last_error, release_untaken
from apps.workloads.services.mending import ACTOR, each_task
from apps.workloads.services.sleeping import leave_routes, note_quiet, order_sleep
from apps.workloads.state import move_of, transition

# Of a group in these states all stages are at one.
_AT_ONE = (State.RUNNING, State.STOPPED, State.COMPLETED)


def keep_pipelines_together(*, lease: Held, now: datetime) -> int:
    """Let the stages of every pipeline follow the one that was lost or given up, and the head into its sleep;
    answers of how many pipelines something moved."""
    apart = Task.objects.filter(
        group__parallelism=Parallelism.PIPELINE_PARALLEL, group__deleted_at__isnull=True, rank=HEAD
    ).exclude(group__state__in=_AT_ONE)

    def mend(head: Task) -> bool:
        stages = {task.pk: task for task in stages_of(head)}
        ended = any(task.state == State.COMPLETED for task in stages.values())
        steps = keep_together(_member(task, ended) for task in stages.values())
        moved = [_take(stages[pk], step, steps.because, now) for pk, step in steps.by_task.items()]
        return any(moved)

    return each_task(lease, list(apart.order_by("pk").values_list("pk", flat=True)), mend)


def _member(task: Task, ended: bool) -> Member:
    return Member(
        task_id=task.pk,
        rank=task.rank,
        state=State(task.state),
        desired=Desired(task.desired),
        given_up=task.state == State.FAILED and _is_given_up(task, ended),
        waits=task.left_table is not None,
    )


def _is_given_up(task: Task, ended: bool) -> bool:
    """Whether recovery starts a failed stage no more. `ended`: another one has run to its end, so that they
    can not start together again."""
    if task.reason_code in GIVEN_UP or ended:
        return True
    if task.group.task_type == TaskType.INFERENCE:
        return False
    return task.reason_code == Code.RUN_TIMEOUT or task.rebuilds >= settings.RUN_RETRIES


def _take(task: Task, step: Step, because: int, now: datetime) -> bool:
    if step is Step.SLEEP:
        if task.state == State.RUNNING:
            leave_routes(task, ACTOR, reason(Code.SLEEP_REQUESTED), now)
            task.refresh_from_db()
        order_sleep(task, now)
        return note_quiet(task)
    if step is Step.RESTART:
        free = {"phase": Phase.NONE, "node_id": None, "running_since": None, "desired": Desired.RUN}
        move = move_of(task, State.PENDING, reason(Code.STAGE_LOST, rank=because), **free)
        hints.kick("scheduling.place")
    else:
        why = reason(Code.STAGE_GIVEN_UP, rank=because)
        error = last_error(why, None, now)
        move = move_of(task, State.FAILED, why, phase=Phase.LEAVING, last_error=error)
    if not transition(move, actor=ACTOR, now=now):
        return False
    release_untaken(task, now=now)
    if task.node is not None:
        hints.look(task.node.public_id)
    return True
