"""Which replicas a scaling keeps: never a step that leaves a serving service without one that serves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.states import Desired, Phase, State
from apps.workloads.policy.replicas import Replica, decide_replicas

SERVES = (State.RUNNING, Phase.READY, Desired.RUN)
STARTS = (State.SCHEDULING, Phase.LOADING, Desired.RUN)
SLEEPS = (State.SLEEPING, Phase.NONE, Desired.SLEEP)
STOPPED = (State.STOPPED, Phase.NONE, Desired.STOP)
WAITS = (State.PENDING, Phase.NONE, Desired.RUN)


def replicas(*kinds: tuple[State, Phase, Desired]) -> list[Replica]:
    return [Replica(rank, rank, *kind) for rank, kind in enumerate(kinds)]


@pytest.mark.req("LIFE-04")
def test_the_highest_ranks_leave_and_what_serves_leaves_last() -> None:
    assert decide_replicas(replicas(SERVES, SERVES, SERVES), 1).leaving == (1, 2)
    plan = decide_replicas(replicas(STARTS, SERVES, WAITS), 1)
    assert plan.kept == (1,) and set(plan.leaving) == {0, 2}
    assert decide_replicas(replicas(SERVES, SLEEPS), 1).leaving == (1,)


@pytest.mark.req("LIFE-04")
def test_what_is_stopped_starts_again_before_new_ones_are_made() -> None:
    plan = decide_replicas(replicas(SERVES, STOPPED, STOPPED), 4)
    assert (plan.restarted, plan.made, plan.leaving) == ((1, 2), 1, ())
    assert decide_replicas(replicas(SERVES, STOPPED, STOPPED), 2).restarted == (1,)


@pytest.mark.req("LIFE-04")
def test_sleepers_count_and_those_kept_are_woken() -> None:
    plan = decide_replicas(replicas(SERVES, SLEEPS, SLEEPS), 2)
    assert (plan.woken, plan.leaving, plan.made) == ((1,), (2,), 0)


@pytest.mark.req("LIFE-04", "SCALE-06")
def test_none_leaves_one_asleep_where_one_can() -> None:
    plan = decide_replicas(replicas(SERVES, SERVES), 0)
    assert (plan.put_to_sleep, plan.leaving) == ((0,), (1,))
    assert not decide_replicas(replicas(SLEEPS, STOPPED), 0).moves
    assert decide_replicas(replicas(WAITS), 0).leaving == (0,)


@pytest.mark.req("LIFE-04")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(State), st.sampled_from([Phase.NONE, Phase.READY]), st.sampled_from(Desired)
        ),
        max_size=7,
    ),
    st.integers(0, 9),
)
def test_any_service_ends_with_so_many_and_keeps_one_that_serves(
    kinds: list[tuple[State, Phase, Desired]], wanted: int
) -> None:
    rows = replicas(*kinds)
    plan = decide_replicas(rows, wanted)
    touched = [*plan.kept, *plan.leaving, *plan.restarted]
    assert len(touched) == len(set(touched))
    by_id = {row.task_id: row for row in rows}
    assert all(by_id[pk].wanted for pk in (*plan.kept, *plan.leaving))
    if wanted:
        assert len(plan.kept) + len(plan.restarted) + plan.made == wanted
        serving = [row for row in rows if row.wanted and row.state == State.RUNNING]
        assert not serving or any(by_id[pk].state == State.RUNNING for pk in plan.kept)
    assert set(plan.woken) | set(plan.put_to_sleep) <= set(plan.kept)
