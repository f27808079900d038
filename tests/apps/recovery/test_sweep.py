"""The recovery loop on real rows: lost nodes, rebuilds, overdue waits, and faults of single steps."""

from datetime import timedelta

import pytest

from agent.contract.codes import Code
from agent.contract.states import Phase, State
from apps.core import hints, ticks
from apps.fleet.models import Liveness
from apps.workloads import services
from apps.workloads.models import Claim, Task, TaskGroup
from apps.workloads.services import mending
from tests import factories
from tests.apps.recovery.conftest import sweep

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "recovery.sweep"


def running_on(node, now, **fields):
    """A running task with its claim, taken on by the node's agent."""
    task = factories.make_task(
        state=State.RUNNING,
        phase=Phase.READY,
        attempt=1,
        node=node,
        running_since=now - timedelta(hours=1),
        **fields,
    )
    factories.make_claim(task, node, incarnation="run-1")
    return task


def silent(now, seconds=60):
    return {"last_seen_at": now - timedelta(seconds=seconds)}


@pytest.mark.req("RECOV-02", "RECOV-06")
def test_the_tasks_of_a_silent_node_wait_for_another_and_are_placed_there(now, listening, monkeypatch):
    kicked = []
    monkeypatch.setattr(hints, "kick", kicked.append)
    lost = factories.make_node(**silent(now))
    other = factories.make_node()
    task, untouched = running_on(lost, now), running_on(other, now)

    assert sweep(now)["lost"] == 1

    task.refresh_from_db()
    untouched.refresh_from_db()
    assert (task.state, task.reason_code, task.node) == (State.PENDING, Code.NODE_LOST, None)
    assert untouched.state == State.RUNNING
    assert Liveness.objects.get(node=lost).declared_lost_at == now
    assert "scheduling.place" in kicked
    # what may still run there keeps its card until the node says that it is gone
    assert Claim.objects.get(task=task, attempt=1).released_at is None

    factories.make_card(other, 1)
    assert ticks.run_tick("scheduling.place", now + timedelta(hours=1)) is not None
    Liveness.objects.filter(node=other).update(last_seen_at=now + timedelta(hours=1))
    ticks.run_tick("scheduling.place", now + timedelta(hours=1))
    task.refresh_from_db()
    assert (task.state, task.node, task.attempt) == (State.SCHEDULING, other, 2)


@pytest.mark.req("RECOV-02")
def test_right_after_a_start_nobody_is_lost_and_nothing_expires(now):
    node = factories.make_node(**silent(now, 3600))
    factories.make_node(**silent(now, 3500))
    task = running_on(node, now)
    late = factories.make_task(
        state=State.SCHEDULING, attempt=1, node=node, deadline_at=now - timedelta(hours=1)
    )

    done = sweep(now)

    task.refresh_from_db()
    late.refresh_from_db()
    assert (task.state, late.state) == (State.RUNNING, State.SCHEDULING)
    assert done["lost"] == 0
    assert "expired" not in done


@pytest.mark.req("RECOV-02")
def test_after_the_term_of_a_start_it_is_lost(now, settings):
    node = factories.make_node(**silent(now, 3600))
    other = factories.make_node()
    task = running_on(node, now)
    moment = now
    for _ in range(8):  # sweeps each 5 s: 35 s after the first
        Liveness.objects.filter(node=other).update(last_seen_at=moment)
        sweep(moment)
        moment += timedelta(seconds=5)

    task.refresh_from_db()
    assert task.reason_code == Code.NODE_LOST


@pytest.mark.req("RECOV-02")
def test_when_all_nodes_are_silent_at_once_nothing_moves_and_an_alarm_is_raised(now, listening, caplog):
    tasks = [running_on(factories.make_node(**silent(now)), now) for _ in range(3)]

    assert sweep(now)["lost"] == 0

    assert {task.state for task in Task.objects.filter(pk__in=[t.pk for t in tasks])} == {State.RUNNING}
    assert "all 3 nodes are silent at once" in caplog.text
    assert not Liveness.objects.filter(declared_lost_at__isnull=False).exists()


@pytest.mark.req("RECOV-02")
def test_a_node_that_is_heard_between_judging_and_moving_is_not_lost(now, listening, monkeypatch):
    node = factories.make_node(**silent(now))
    factories.make_node()
    task = running_on(node, now)
    from apps.recovery import loop

    judge = loop.judge

    def judge_and_be_heard(*args, **kwargs):
        verdict = judge(*args, **kwargs)
        Liveness.objects.filter(node=node).update(last_seen_at=now)
        return verdict

    monkeypatch.setattr(loop, "judge", judge_and_be_heard)
    assert sweep(now)["lost"] == 0
    task.refresh_from_db()
    assert task.state == State.RUNNING


@pytest.mark.req("RECOV-01")
def test_a_failed_task_is_rebuilt_after_its_back_off(now, listening):
    node = factories.make_node()
    task = factories.make_task(state=State.FAILED, attempt=1, node=node, rebuilds=0)

    assert sweep(now)["rebuilt"] == 1
    task.refresh_from_db()
    assert (task.state, task.reason_code, task.rebuilds) == (State.PENDING, Code.REBUILD, 1)
    assert task.not_before > now


@pytest.mark.req("RECOV-01")
def test_rebuilds_are_spent_at_the_limit(now, listening, settings):
    settings.REBUILD_MAX = 2
    task = factories.make_task(state=State.FAILED, attempt=3, rebuilds=2)
    sweep(now)

    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.REBUILDS_SPENT)


@pytest.mark.req("RECOV-01")
def test_a_task_whose_old_attempt_may_still_run_is_not_rebuilt_yet(now, listening):
    node = factories.make_node()
    task = factories.make_task(state=State.FAILED, attempt=1, node=node)
    claim = factories.make_claim(task, node, incarnation="run-1")
    assert sweep(now)["rebuilt"] == 0

    Claim.objects.filter(pk=claim.pk).update(released_at=now)
    assert sweep(now + timedelta(seconds=5))["rebuilt"] == 1


@pytest.mark.req("SVC-12")
def test_an_overdue_claim_fails_and_is_freed(now, listening):
    node = factories.make_node()
    task = factories.make_task(
        state=State.SCHEDULING, attempt=1, node=node, deadline_at=now - timedelta(seconds=1)
    )
    claim = factories.make_claim(task, node)

    assert sweep(now)["expired"] == 1
    claim.refresh_from_db()
    assert claim.released_at is not None


@pytest.mark.req("SVC-12")
def test_a_deleted_group_goes_when_nothing_of_it_is_left(now, listening):
    gone = factories.make_group(deleted_at=now, state=State.STOPPED)
    factories.make_task(gone, state=State.STOPPED)
    busy = factories.make_group(deleted_at=now, state=State.STOPPING)
    node = factories.make_node()
    factories.make_claim(factories.make_task(busy, state=State.STOPPING, attempt=1, node=node), node)

    assert sweep(now)["deleted"] == 1
    assert list(TaskGroup.objects.all()) == [busy]


STEPS = (
    "lose_nodes",
    "lose_cards",
    "note_held_back",
    "expire_deadlines",
    "rebuild_failed",
    "finish_deleted",
)


@pytest.mark.req("RECOV-05")
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_is_named_and_the_others_go_on(now, listening, monkeypatch, step):
    node, _ = factories.make_node(**silent(now)), factories.make_node()
    running_on(node, now)
    called = []
    for name in STEPS:

        def note(*, name=name, **kwargs):
            called.append(name)
            if name == step:
                raise RuntimeError("this one only")
            return [] if name == "finish_deleted" else 0

        monkeypatch.setattr(services, name, note)

    done = sweep(now)

    assert sorted(called) == sorted(STEPS)
    assert len(done["failed"]) == 1


@pytest.mark.req("RECOV-05")
def test_an_item_that_fails_leaves_the_others_mended(now, listening, monkeypatch):
    tasks = [factories.make_task(state=State.FAILED, attempt=1) for _ in range(3)]
    move = mending.move_of

    def trip_over_the_first(task, *args, **kwargs):
        if task.pk == tasks[0].pk:
            raise RuntimeError
        return move(task, *args, **kwargs)

    monkeypatch.setattr(mending, "move_of", trip_over_the_first)
    assert sweep(now)["rebuilt"] == 2

    monkeypatch.undo()
    assert sweep(now + timedelta(seconds=5))["rebuilt"] == 1


@pytest.mark.req("RECOV-06")
def test_a_quiet_sweep_changes_nothing_and_remembers_since_when_it_listens(now, listening):
    factories.make_node()
    done = sweep(now)

    assert done == {
        "listening_since": (now - timedelta(hours=1)).isoformat(),
        "lost": 0,
        "lost_cards": 0,
        "held_back": 0,
        "expired": 0,
        "loans_ended": 0,
        "kept_room": 0,
        "woken": 0,
        "rebuilt": 0,
        "stages": 0,
        "deleted": 0,
    }
