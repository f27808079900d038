"""The table of moves and what follows from it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.codes import Code
from agent.contract.messages import TaskReport
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.workloads.policy.moves import MOVES, derive_group_state, is_allowed
from apps.workloads.policy.reconcile import Standing, is_missing, judge_report, next_rebuild

ALLOWED = """
pending: scheduling stopped failed
scheduling: running pending failed stopping
running: draining stopping completed failed pending
draining: sleeping stopping stopped running failed
sleeping: waking pending stopping
waking: running sleeping pending failed stopping
stopping: stopped failed
failed: pending stopped
stopped: pending
completed:
"""


@pytest.mark.req("LIFE-01", "LIFE-02")
def test_the_table_is_the_written_one() -> None:
    written = {}
    for line in ALLOWED.strip().splitlines():
        from_, _, to = line.partition(":")
        written[State(from_)] = frozenset(State(word) for word in to.split())
    assert written == MOVES


@pytest.mark.req("LIFE-02")
def test_every_state_but_completed_can_be_stopped_and_left() -> None:
    def reachable(start: State) -> set[State]:
        seen, todo = set(), [start]
        while todo:
            for state in MOVES[todo.pop()] - seen:
                seen.add(state)
                todo.append(state)
        return seen

    for state in State:
        if state not in (State.COMPLETED, State.STOPPED):
            assert State.STOPPED in reachable(state)
    assert not MOVES[State.COMPLETED]


@pytest.mark.req("LIFE-05")
@given(st.lists(st.sampled_from(State), max_size=6))
def test_a_group_is_in_a_state_of_its_tasks(states: list[State]) -> None:
    derived = derive_group_state(states)
    assert derived in states or derived == State.STOPPED
    assert derive_group_state(list(reversed(states))) == derived
    if State.RUNNING in states:
        assert derived == State.RUNNING


def report(observed: Observed, phase: Phase = Phase.NONE, exit_code: int | None = None) -> TaskReport:
    return TaskReport(
        sequence=1, task_id="task-a", attempt=1, phase=phase, observed=observed, exit_code=exit_code
    )


@pytest.mark.req("LIFE-01", "LIFE-08")
@given(
    st.sampled_from(State),
    st.sampled_from(TaskType),
    st.sampled_from(Observed),
    st.none() | st.integers(0, 255),
    st.sampled_from(Phase),
    st.sampled_from(Desired),
    st.sampled_from(["", Code.WAKE_REQUESTED, Code.SLEEP_UNCONFIRMED, Code.ASLEEP_NO_CONTAINER]),
    st.booleans(),
)
def test_no_report_asks_for_an_impossible_move(
    state: State,
    task_type: TaskType,
    observed: Observed,
    exit_code: int | None,
    phase: Phase,
    desired: Desired,
    reason_code: str,
    placed: bool,
) -> None:
    standing = Standing(state, task_type, phase, desired, reason_code, placed)
    outcome = judge_report(standing, report(observed, Phase.LOADING, exit_code))
    steps = [state, *(step for step in (outcome.via, outcome.to) if step is not None)]
    assert all(is_allowed(*pair) for pair in pairwise(steps))
    ended = observed in (Observed.EXITED, Observed.GONE)
    assert (outcome.over + outcome.vacant + outcome.anew) == ended


@pytest.mark.req("LIFE-02", "LIFE-08")
def test_an_inference_task_that_exits_with_zero_has_failed() -> None:
    ended = report(Observed.EXITED, exit_code=0)
    assert judge_report(Standing(State.RUNNING, TaskType.INFERENCE), ended).to == State.FAILED
    assert judge_report(Standing(State.RUNNING, TaskType.TRAINING), ended).to == State.COMPLETED


@pytest.mark.req("LIFE-08")
def test_a_loading_engine_stays_scheduling() -> None:
    outcome = judge_report(
        Standing(State.SCHEDULING, TaskType.INFERENCE), report(Observed.STARTING, Phase.LOADING)
    )
    assert outcome.to is None and outcome.phase == Phase.LOADING
    ready = judge_report(Standing(State.SCHEDULING, TaskType.INFERENCE), report(Observed.READY, Phase.READY))
    assert ready.to == State.RUNNING and ready.reason is not None and ready.reason.code == Code.READY


@pytest.mark.req("AGENT-09")
def test_what_a_list_lacks_is_gone_only_when_the_list_can_know() -> None:
    now_run = {"incarnation": "b", "grace_s": 15.0}
    assert not is_missing(listed=False, claimed_by="", claimed_for_s=99, **now_run)  # nobody took it on yet
    assert not is_missing(listed=True, claimed_by="a", claimed_for_s=99, **now_run)
    assert is_missing(listed=False, claimed_by="a", claimed_for_s=1, **now_run)  # an older run: dead at once
    assert not is_missing(listed=False, claimed_by="b", claimed_for_s=14, **now_run)
    assert is_missing(listed=False, claimed_by="b", claimed_for_s=16, **now_run)


@pytest.mark.req("RECOV-01")
@given(st.integers(0, 9), st.none() | st.floats(0, 1e6), st.floats(1, 100), st.integers(0, 9))
def test_rebuilds_are_bounded_unless_a_run_was_stable(
    rebuilds: int, stable_for_s: float | None, stable_s: float, limit: int
) -> None:
    coming = next_rebuild(rebuilds=rebuilds, stable_for_s=stable_for_s, stable_s=stable_s, limit=limit)
    if coming is not None:
        assert 1 <= coming <= limit
    elif limit:
        assert rebuilds >= limit and (stable_for_s is None or stable_for_s < stable_s)
