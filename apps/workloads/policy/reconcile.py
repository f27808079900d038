"""What a report or a silence means for one attempt: desired, observed and claim brought together.

Pure: takes what is known, answers what should change. `services/reporting.py` carries it out.
"""

from dataclasses import dataclass

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import TaskReport
from agent.contract.states import Observed, Phase, State, TaskType
from apps.workloads.policy.moves import SERVING


@dataclass(frozen=True)
class Outcome:
    """`to` None = the state stays. `over` = the attempt is gone from its node: its card, ports and
    claim are free."""

    to: State | None = None
    phase: Phase | None = None
    reason: Reason | None = None
    over: bool = False


def judge_report(state: State, task_type: TaskType, report: TaskReport) -> Outcome:
    """What a report on the current attempt of a task changes."""
    if report.observed in (Observed.EXITED, Observed.GONE):
        return _judge_end(state, task_type, report)
    if state not in SERVING:
        return Outcome()  # it is leaving; only its end counts now
    if report.observed == Observed.UNHEALTHY:
        why = report.reason or reason(Code.UNHEALTHY, failures=1, why="-")
        return Outcome(State.FAILED, Phase.LEAVING, why)
    if report.observed == Observed.READY:
        if state == State.RUNNING:
            return Outcome(phase=Phase.READY)
        return Outcome(State.RUNNING, Phase.READY, reason(Code.READY))
    return Outcome(phase=report.phase) if state != State.RUNNING else Outcome()


def _judge_end(state: State, task_type: TaskType, report: TaskReport) -> Outcome:
    if state in (State.STOPPING, State.DRAINING):
        return Outcome(State.STOPPED, Phase.NONE, reason(Code.STOP_CONFIRMED), over=True)
    if state not in SERVING:
        return Outcome(over=True)
    # An inference container that ends by itself has failed, with exit code 0 too (LIFE-02).
    if task_type != TaskType.INFERENCE and report.exit_code == 0 and state == State.RUNNING:
        return Outcome(State.COMPLETED, Phase.NONE, reason(Code.COMPLETED), over=True)
    why = report.reason
    if why is not None and why.code == Code.AGENT_RESTARTED and task_type == TaskType.INFERENCE:
        # Its agent went down in good order and took it along: no fault of the task (AGENT-03).
        return Outcome(State.PENDING, Phase.NONE, why, over=True)
    if why is None:
        code = Code.EXITED if report.observed == Observed.EXITED else Code.CONTAINER_GONE
        why = reason(code, exit_code=report.exit_code)
    return Outcome(State.FAILED, Phase.NONE, why, over=True)


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
