"""What a report or a silence means for one attempt: desired, observed and claim brought together.

Pure: takes what is known, answers what should change. `services/reporting.py` carries it out.
"""

from dataclasses import dataclass

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import TaskReport
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.workloads.policy.moves import SERVING, is_falling_asleep


@dataclass(frozen=True)
class Standing:
    """What the server knows of the current attempt of a task. `reason_code`: why it is in its state.
    `placed` False = asleep without a place: its node was emptied or removed meanwhile."""

    state: State
    task_type: TaskType = TaskType.INFERENCE
    phase: Phase = Phase.NONE
    desired: Desired = Desired.RUN
    reason_code: str = ""
    placed: bool = True


@dataclass(frozen=True)
class Outcome:
    """`to` None = the state stays; `via` = a state that it passes through. `over` = the attempt is gone from
    its node: its card, ports and claim are free. `vacant` = nothing of it is there any more, but the claim
    keeps its card and ports, which the next attempt takes over at the wake (SLEEP-03). `anew` = the run of
    the agent that holds it is building it once more."""

    to: State | None = None
    phase: Phase | None = None
    reason: Reason | None = None
    over: bool = False
    vacant: bool = False
    anew: bool = False
    via: State | None = None


def judge_report(task: Standing, report: TaskReport) -> Outcome:
    """What a report on the current attempt of a task changes."""
    if report.observed in (Observed.EXITED, Observed.GONE):
        return _judge_end(task, report)
    if report.observed == Observed.ASLEEP:
        return _judge_asleep(task)
    if task.state not in SERVING:
        return Outcome()  # it is leaving; only its end counts now
    if report.observed == Observed.UNHEALTHY:
        why = report.reason or reason(Code.UNHEALTHY, failures=1, why="-")
        return Outcome(State.FAILED, Phase.LEAVING, why)
    if report.observed == Observed.READY:
        if task.state == State.RUNNING:
            return Outcome(phase=Phase.READY)
        return Outcome(State.RUNNING, Phase.READY, reason(Code.READY))
    return Outcome(phase=report.phase) if task.state != State.RUNNING else Outcome()


def _judge_asleep(task: Standing) -> Outcome:
    if is_falling_asleep(task.state, task.phase, task.desired):
        return Outcome(State.SLEEPING, Phase.NONE, reason(Code.ASLEEP))
    if task.state == State.SLEEPING and task.reason_code == Code.SLEEP_UNCONFIRMED:
        return Outcome(reason=reason(Code.ASLEEP))
    if task.state == State.RUNNING:
        return Outcome(phase=Phase.LOADING)  # out of the routes until its node has started it again
    return Outcome()


def _judge_end(task: Standing, report: TaskReport) -> Outcome:
    kept = judge_absence(task)
    if kept is not None and (task.state != State.WAKING or report.observed == Observed.GONE):
        return kept
    if task.state in (State.STOPPING, State.DRAINING):
        return Outcome(State.STOPPED, Phase.NONE, reason(Code.STOP_CONFIRMED), over=True)
    if task.state not in SERVING:
        return Outcome(over=True)
    # An inference container that ends by itself has failed, with exit code 0 too (LIFE-02).
    if task.task_type != TaskType.INFERENCE and report.exit_code == 0:
        # Of a short one the end may be the first that is heard of it.
        via = None if task.state == State.RUNNING else State.RUNNING
        return Outcome(State.COMPLETED, Phase.NONE, reason(Code.COMPLETED), over=True, via=via)
    why = report.reason
    if why is not None and why.code == Code.AGENT_RESTARTED and task.task_type == TaskType.INFERENCE:
        # Its agent went down in good order and took it along: no fault of the task (AGENT-03).
        return Outcome(State.PENDING, Phase.NONE, why, over=True)
    if why is None:
        code = Code.EXITED if report.observed == Observed.EXITED else Code.CONTAINER_GONE
        why = reason(code, exit_code=report.exit_code)
    return Outcome(State.FAILED, Phase.NONE, why, over=True)


def judge_absence(task: Standing) -> Outcome | None:
    """What it changes that nothing of a task is on its node, where it needs nothing there: asleep, about to
    be, or woken and not started yet. None where its absence is an end."""
    if task.state == State.SLEEPING:
        if not task.placed:
            return Outcome(over=True)
        known = task.desired == Desired.RUN or task.reason_code == Code.ASLEEP_NO_CONTAINER
        return Outcome(vacant=True, reason=None if known else reason(Code.ASLEEP_NO_CONTAINER))
    if task.state == State.DRAINING and task.desired != Desired.STOP:
        return Outcome(State.SLEEPING, Phase.NONE, reason(Code.ASLEEP_NO_CONTAINER), vacant=True)
    if task.state == State.WAKING and task.reason_code == Code.WAKE_REQUESTED and task.phase == Phase.CLAIMED:
        # Once only: what vanishes again fails.
        return Outcome(reason=reason(Code.WAKE_NEW_CONTAINER), anew=True)
    return None


def is_missing(
    *,
    listed: bool,
    claimed_by: str,
    incarnation: str,
    claimed_for_s: float,
    grace_s: float,
) -> bool:
    """Whether an attempt is over because its node's complete list of what exists does not hold it.

    A claim of an older run of the agent is over at once: that run is dead and its successor does
    not have the container. One of this run gets a grace, for the list may be older than the claim.
    """
    if listed or not claimed_by:
        return False
    return claimed_by != incarnation or claimed_for_s > grace_s


def next_rebuild(*, rebuilds: int, stable_for_s: float | None, stable_s: float, limit: int) -> int | None:
    """The number of the rebuild that comes next, None when they are spent (RECOV-01). The count
    begins anew after a run that stayed up `stable_s`; `stable_for_s` None = it never ran."""
    done = 0 if stable_for_s is not None and stable_for_s >= stable_s else rebuilds
    return done + 1 if done < limit else None
