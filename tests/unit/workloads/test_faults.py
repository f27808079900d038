"""The fault timeline, derived from events (LIFE-06)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract.codes import Code
from agent.contract.states import State
from apps.workloads.policy.faults import MOVED, Moment, Outcome, find_faults
from apps.workloads.policy.moves import MOVES

pytestmark = pytest.mark.req("LIFE-06")
S = State
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def story(*steps, task="task-1"):
    """Moments a second apart, from (from, to, code)."""
    return [
        Moment(task, 1, START + timedelta(seconds=second), from_, to, code, {"n": second})
        for second, (from_, to, code) in enumerate(steps)
    ]


def shown(faults):
    return [
        (fault.cause.code, fault.action and fault.action[0], fault.duration_s, fault.outcome)
        for fault in faults
    ]


UP = [(S.PENDING, S.SCHEDULING, Code.PLACED), (S.SCHEDULING, S.RUNNING, Code.READY)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param(UP, [], id="a quiet life"),
        pytest.param(
            [*UP, (S.RUNNING, S.FAILED, Code.EXITED), (S.FAILED, S.PENDING, Code.REBUILD), *UP],
            [(Code.EXITED, Code.REBUILD, 3.0, Outcome.SERVING)],
            id="a rebuild",
        ),
        pytest.param(
            [*UP, (S.RUNNING, S.PENDING, Code.NODE_LOST), *UP],
            [(Code.NODE_LOST, MOVED, 2.0, Outcome.SERVING)],
            id="a lost node",
        ),
        pytest.param(
            [*UP, (S.RUNNING, S.FAILED, Code.CARD_LOST)],
            [(Code.CARD_LOST, None, None, Outcome.OPEN)],
            id="a lost card, nothing done yet",
        ),
        pytest.param(
            [
                (S.SCHEDULING, S.FAILED, Code.IMAGE_MISSING),
                (S.FAILED, S.PENDING, Code.TEMPLATE_NEXT),
                (S.PENDING, S.SCHEDULING, Code.PLACED),
                (S.SCHEDULING, S.FAILED, Code.EXITED),
                ("", "", Code.TEMPLATES_SPENT),
            ],
            [
                (Code.EXITED, Code.TEMPLATES_SPENT, None, Outcome.OPEN),
                (Code.IMAGE_MISSING, Code.TEMPLATE_NEXT, 3.0, Outcome.FAILED_AGAIN),
            ],
            id="a chain that is spent, newest first",
        ),
        pytest.param(
            [(S.RUNNING, S.FAILED, Code.RUN_TIMEOUT), (S.FAILED, S.STOPPED, Code.STOP_REQUESTED)],
            [(Code.RUN_TIMEOUT, Code.STOP_REQUESTED, 1.0, Outcome.ENDED)],
            id="stopped by its people",
        ),
        pytest.param(
            [*UP, (S.RUNNING, S.PENDING, Code.NODE_DRAINING), *UP, (S.RUNNING, S.DRAINING, Code.IDLE)],
            [],
            id="what was asked for is no fault",
        ),
    ],
)
def test_a_fault_has_its_cause_action_and_duration(steps, expected):
    assert shown(find_faults(story(*steps))) == expected


def test_tasks_are_told_apart():
    one = story((S.RUNNING, S.FAILED, Code.EXITED))
    other = story(*UP, task="task-2")
    assert shown(find_faults([*one, *other])) == [(Code.EXITED, None, None, Outcome.OPEN)]


@given(st.data())
def test_no_story_has_two_open_faults_of_one_task_or_one_that_ends_before_it_begins(data):
    state, steps = S.PENDING, []
    for _step in range(data.draw(st.integers(0, 30))):
        if not MOVES[state]:
            break
        to = data.draw(st.sampled_from(sorted(MOVES[state])))
        steps.append((state, to, data.draw(st.sampled_from(sorted(Code)))))
        state = to
    faults = find_faults(story(*steps))
    assert sum(fault.until is None for fault in faults) <= 1
    assert all(fault.duration_s is None or fault.duration_s > 0 for fault in faults)
    assert [fault.cause.at for fault in faults] == sorted((f.cause.at for f in faults), reverse=True)
    assert all((fault.until is None) == (fault.outcome is Outcome.OPEN) for fault in faults)
