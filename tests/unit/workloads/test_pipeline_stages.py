"""What follows from one stage of a pipeline for the others, and from all for the pipeline."""

import pytest

from agent.contract.states import Desired, State
from apps.workloads.policy.pipelines import (
    MEETING_PORT,
    Member,
    Step,
    derive_pipeline_state,
    keep_together,
    ports_of_stage,
)

pytestmark = pytest.mark.req("PAR-03")


def stages(*states: State | Member) -> list[Member]:
    return [
        one if isinstance(one, Member) else Member(task_id=10 + rank, rank=rank, state=one)
        for rank, one in enumerate(states)
    ]


def test_nothing_follows_while_all_are_at_one() -> None:
    for state in State:
        if state in (State.FAILED, State.PENDING):
            continue
        assert keep_together(stages(state, state, state)).by_task == {}
    assert keep_together(stages(State.PENDING, State.PENDING)).by_task == {}
    assert keep_together([]).by_task == {}


@pytest.mark.parametrize("lost", [State.FAILED, State.PENDING])
@pytest.mark.parametrize("other", [State.SCHEDULING, State.RUNNING, State.WAKING, State.SLEEPING])
def test_with_one_lost_all_start_again(lost: State, other: State) -> None:
    steps = keep_together(stages(other, lost, other))
    assert steps.by_task == {10: Step.RESTART, 12: Step.RESTART}
    assert steps.because == 1
    assert keep_together(stages(lost, other)).by_task == {11: Step.RESTART}


def test_what_is_on_its_way_out_is_left_alone() -> None:
    for state in (State.STOPPING, State.STOPPED, State.DRAINING, State.COMPLETED, State.FAILED):
        assert keep_together(stages(state, State.PENDING)).by_task == {}
    stopped = Member(task_id=10, rank=0, state=State.FAILED, desired=Desired.STOP)
    assert keep_together(stages(stopped, State.RUNNING)).by_task == {}


def test_with_one_given_up_none_goes_on() -> None:
    hopeless = Member(task_id=11, rank=1, state=State.FAILED, given_up=True)
    steps = keep_together(stages(State.RUNNING, hopeless, State.PENDING, State.SLEEPING))
    assert steps.by_task == {10: Step.GIVE_UP, 12: Step.GIVE_UP}
    assert steps.because == 1
    both = Member(task_id=10, rank=0, state=State.FAILED, given_up=True)
    assert keep_together(stages(both, hopeless)).by_task == {}


def test_the_others_sleep_once_the_head_does() -> None:
    waits = Member(task_id=11, rank=1, state=State.DRAINING, desired=Desired.SLEEP, waits=True)
    told = Member(task_id=12, rank=2, state=State.DRAINING, desired=Desired.SLEEP)
    assert keep_together(stages(State.DRAINING, waits, told)).by_task == {}  # calls run yet
    assert keep_together(stages(State.SLEEPING, waits, told)).by_task == {11: Step.SLEEP}
    assert keep_together(stages(State.SLEEPING, State.RUNNING)).by_task == {11: Step.SLEEP}
    assert keep_together(stages(State.SLEEPING, State.SLEEPING)).by_task == {}


@pytest.mark.req("LIFE-05")
@pytest.mark.parametrize(
    ("states", "derived"),
    [
        ([State.RUNNING, State.RUNNING], State.RUNNING),
        ([State.RUNNING, State.SCHEDULING], State.SCHEDULING),
        ([State.RUNNING, State.FAILED], State.FAILED),
        ([State.PENDING, State.FAILED], State.FAILED),
        ([State.RUNNING, State.STOPPING], State.STOPPING),
        ([State.SLEEPING, State.DRAINING], State.DRAINING),
        ([State.WAKING, State.RUNNING], State.WAKING),
        ([State.RUNNING, State.COMPLETED], State.RUNNING),
        ([State.COMPLETED, State.COMPLETED], State.COMPLETED),
        ([State.STOPPED, State.COMPLETED], State.STOPPED),
        ([State.STOPPED, State.STOPPED], State.STOPPED),
        ([], State.STOPPED),
    ],
)
def test_a_pipeline_is_as_far_as_its_weakest_stage(states: list[State], derived: State) -> None:
    assert derive_pipeline_state(states) == derive_pipeline_state(states[::-1]) == derived


def test_the_head_alone_has_ports_and_one_to_meet_at() -> None:
    assert ports_of_stage([(8000, 0), (9000, 31000)], 0) == ((8000, 0), (9000, 31000), (MEETING_PORT, 0))
    assert ports_of_stage([(8000, 0)], 1) == ()
