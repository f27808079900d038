"""What reports mean while a task falls asleep, sleeps and wakes: nothing of its place is given up."""

import pytest

from agent.contract.codes import Code
from agent.contract.messages import TaskReport
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.workloads.policy.reconcile import Outcome, Standing, judge_absence, judge_report

FALLING = Standing(State.DRAINING, phase=Phase.LEAVING, desired=Desired.SLEEP)
ASLEEP = Standing(State.SLEEPING, desired=Desired.SLEEP, reason_code=Code.ASLEEP)
WOKEN = Standing(State.WAKING, phase=Phase.CLAIMED, reason_code=Code.WAKE_REQUESTED)
REBUILT = Standing(State.WAKING, phase=Phase.CLAIMED, reason_code=Code.WAKE_NEW_CONTAINER)


def judged(task: Standing, observed: Observed, exit_code: int | None = None) -> Outcome:
    report = TaskReport(
        sequence=1, task_id="t", attempt=1, phase=Phase.LOADING, observed=observed, exit_code=exit_code
    )
    return judge_report(task, report)


@pytest.mark.req("SLEEP-01")
def test_it_sleeps_when_its_node_says_so_and_keeps_what_it_holds() -> None:
    outcome = judged(FALLING, Observed.ASLEEP)
    assert outcome.to == State.SLEEPING and not outcome.over and not outcome.vacant
    for observed in (Observed.READY, Observed.STARTING, Observed.UNHEALTHY):
        assert judged(FALLING, observed) == judged(ASLEEP, observed) == Outcome()


@pytest.mark.req("SLEEP-01", "SLEEP-03")
@pytest.mark.parametrize("observed", [Observed.EXITED, Observed.GONE])
def test_an_agent_that_keeps_no_container_leaves_it_asleep_without_one(observed: Observed) -> None:
    outcome = judged(FALLING, observed)
    assert (outcome.to, outcome.vacant, outcome.over) == (State.SLEEPING, True, False)
    assert outcome.reason is not None and outcome.reason.code == Code.ASLEEP_NO_CONTAINER
    for task in (ASLEEP, Standing(State.SLEEPING, desired=Desired.RUN, reason_code=Code.WAKE_NODE_OFFLINE)):
        gone = judged(task, observed)
        assert gone.to is None and gone.vacant and not gone.over
    assert judged(Standing(State.SLEEPING, placed=False), observed) == Outcome(over=True)


@pytest.mark.req("SLEEP-02", "SLEEP-03")
def test_a_woken_task_whose_container_is_gone_gets_one_more_and_then_fails() -> None:
    once = judged(WOKEN, Observed.GONE)
    assert once.to is None and once.anew and not once.over and not once.vacant
    assert once.reason is not None and once.reason.code == Code.WAKE_NEW_CONTAINER
    assert judged(REBUILT, Observed.GONE).to == State.FAILED
    assert judged(WOKEN, Observed.EXITED, 1).to == State.FAILED  # it was started, and ended
    assert judged(WOKEN, Observed.READY).to == State.RUNNING
    assert judged(WOKEN, Observed.ASLEEP) == Outcome()  # said before it heard of the wake


@pytest.mark.req("SLEEP-01")
def test_what_runs_for_the_server_and_sleeps_for_its_node_leaves_the_routes() -> None:
    assert judged(Standing(State.RUNNING, phase=Phase.READY), Observed.ASLEEP) == Outcome(phase=Phase.LOADING)


@pytest.mark.req("SLEEP-01", "LIFE-09")
def test_what_drains_for_a_stop_is_stopped_by_its_end() -> None:
    leaving = Standing(State.DRAINING, phase=Phase.LEAVING, desired=Desired.STOP)
    assert judged(leaving, Observed.GONE).to == State.STOPPED and judge_absence(leaving) is None
    assert judge_absence(Standing(State.RUNNING)) is None


@pytest.mark.req("LIFE-02", "LIFE-07")
@pytest.mark.parametrize("kind", [TaskType.TRAINING, TaskType.CONTAINER])
def test_a_run_that_is_over_before_it_was_seen_ready_has_completed(kind: TaskType) -> None:
    outcome = judged(Standing(State.SCHEDULING, kind), Observed.EXITED, 0)
    assert (outcome.via, outcome.to, outcome.over) == (State.RUNNING, State.COMPLETED, True)
    assert judged(Standing(State.SCHEDULING, kind), Observed.EXITED, 1).to == State.FAILED
