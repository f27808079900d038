"""Every action in every state: what it does, what stays, and that a repeat does nothing more (LIFE-04)."""

import pytest

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Observed, Phase, State
from apps.core.errors import Conflict
from apps.fleet.models import Node
from apps.tenants.scope import SYSTEM
from apps.workloads import selectors, services
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.moves import WAITING, is_allowed, waiting_for
from apps.workloads.state import move_of, transition
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_node, make_task

pytestmark = pytest.mark.django_db

# state: what sleep, wake and stop make of a task that came there by its own life; a word in capitals is
# the code of a refusal.
TABLE = {
    State.PENDING: ("CANNOT_SLEEP", "pending", "stopped"),
    State.SCHEDULING: ("CANNOT_SLEEP", "scheduling", "stopping"),
    State.RUNNING: ("draining", "running", "stopping"),
    State.DRAINING: ("draining", "draining", "stopping"),
    State.SLEEPING: ("sleeping", "waking", "stopping"),
    State.WAKING: ("sleeping", "waking", "stopping"),
    State.STOPPING: ("CANNOT_SLEEP", "CANNOT_WAKE", "stopping"),
    State.COMPLETED: ("CANNOT_SLEEP", "CANNOT_WAKE", "completed"),
    State.FAILED: ("CANNOT_SLEEP", "CANNOT_WAKE", "stopped"),
    State.STOPPED: ("CANNOT_SLEEP", "CANNOT_WAKE", "stopped"),
}
ACTIONS = ("sleep", "wake", "stop")
CASES = [(state, action, row[n]) for state, row in TABLE.items() for n, action in enumerate(ACTIONS)]


def brought_to(life: Life, node: Node, state: State) -> Task:
    """A task in a state, by the way that leads there."""
    task = make_task()
    if state == State.PENDING:
        return task
    if state == State.SCHEDULING:
        life.place(task, node)
        life.claim(task, node)
        task.refresh_from_db()
        return task
    life.run(task, node)
    if state in (State.DRAINING, State.SLEEPING, State.WAKING):
        services.request_sleep(by="x", task=task, now=NOW)
        if state != State.DRAINING:
            life.report(task, node, Observed.ASLEEP)
        if state == State.WAKING:
            services.request_wake(by="x", task=task, now=NOW)
    elif state in (State.STOPPING, State.STOPPED):
        stop(task)
        if state == State.STOPPED:
            life.report(task, node, Observed.GONE)
    elif state == State.FAILED:
        life.report(task, node, Observed.EXITED, exit_code=1)
    elif state == State.COMPLETED:
        transition(move_of(task, State.COMPLETED, reason(Code.COMPLETED)), actor="x", now=NOW)
        Claim.objects.update(released_at=NOW)
    task.refresh_from_db()
    assert task.state == state
    return task


def stop(task: Task) -> bool:
    told = services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=NOW)
    return bool(told.moved)


def act(action: str, task: Task) -> bool:
    """Whether something was moved or noted."""
    if action == "stop":
        return stop(task)
    do = services.request_sleep if action == "sleep" else services.request_wake
    return do(by="x", task=task, now=NOW).did is not services.Did.NOTHING


@pytest.mark.req("LIFE-04", "LIFE-01", "SLEEP-01", "SLEEP-02")
@pytest.mark.parametrize(("state", "action", "leads_to"), CASES)
def test_each_action_in_each_state(life: Life, state: State, action: str, leads_to: str) -> None:
    node = make_node()
    task = brought_to(life, node, state)
    held = Claim.objects.filter(released_at__isnull=True).count()
    before = (task.version, Event.objects.count())
    if leads_to.isupper():
        for _ in range(2):
            with pytest.raises(Conflict) as caught:
                act(action, task)
            assert caught.value.code == leads_to.lower() and caught.value.params["state"] == state
        task.refresh_from_db()
        assert (task.version, Event.objects.count()) == before
        return
    changed = act(action, task)
    task.refresh_from_db()
    assert task.state == leads_to and changed == (before != (task.version, Event.objects.count()))
    for move in Event.objects.exclude(from_state=""):
        assert is_allowed(State(move.from_state), State(move.to_state))
    after = (task.version, Event.objects.count())
    assert not act(action, task)  # a repeat
    task.refresh_from_db()
    assert (task.state, task.version, Event.objects.count()) == (leads_to, *after)
    if action != "stop":
        assert Claim.objects.filter(released_at__isnull=True).count() == held


@pytest.mark.req("LIFE-04", "LIFE-01", "SVC-12")
@pytest.mark.parametrize("state", [s for s in State if s not in (State.COMPLETED, State.STOPPED)])
def test_a_stop_from_every_state_ends_with_nothing_held(life: Life, state: State) -> None:
    node = make_node()
    task = brought_to(life, node, state)
    stop(task)
    assert [wanted.desired for wanted in selectors.desired_of(node) if wanted.sleep is None] == [
        Desired.STOP for _ in selectors.desired_of(node)
    ]
    if state not in (State.PENDING, State.FAILED):
        life.report(task, node, Observed.GONE)
    task.refresh_from_db()
    assert (task.state, task.desired) == (State.STOPPED, Desired.STOP)
    assert not Claim.objects.filter(released_at__isnull=True).exists()
    assert services.rebuild_failed(lease=life.lease, now=NOW) == 0


@pytest.mark.req("LIFE-01")
@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("phase", [Phase.NONE, Phase.PLACED, Phase.READY, Phase.LEAVING])
@pytest.mark.parametrize("desired", Desired)
def test_every_state_that_is_not_over_says_what_it_waits_for(
    state: State, phase: Phase, desired: Desired
) -> None:
    waiting = waiting_for(state, phase, desired)
    if state in (State.STOPPED, State.COMPLETED):
        assert waiting is None
        return
    assert waiting is not None
    wait = WAITING[waiting]
    assert wait.state == state and (wait.to is None or is_allowed(state, wait.to))
    assert wait.settings or wait.note
