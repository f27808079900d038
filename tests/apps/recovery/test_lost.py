"""Lost cards, too many losses at once, and all nodes silent (RECOV-02, RECOV-04)."""

from datetime import timedelta

import pytest

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Phase, State, TaskType
from apps.fleet.models import Card, Liveness
from apps.tenants.scope import SYSTEM
from apps.workloads import services
from apps.workloads.models import Claim, Event, Task
from tests import factories
from tests.apps.recovery.conftest import sweep

pytestmark = pytest.mark.django_db(transaction=True)


def vanish(node):
    Card.objects.filter(node=node).update(present=False)


@pytest.mark.req("RECOV-04")
def test_a_card_that_vanished_fails_what_is_on_it_and_nothing_else(now, listening, up, settings):
    settings.CARD_LOST_S = 10.0
    node, other = factories.make_node(), factories.make_node()
    task, untouched = up(node), up(other)
    vanish(node)

    assert sweep(now)["lost_cards"] == 0  # one heartbeat without it may be a slip of the driver
    later = now + timedelta(seconds=10)
    Liveness.objects.update(last_seen_at=later)
    done = sweep(later)

    task.refresh_from_db()
    untouched.refresh_from_db()
    assert done["lost_cards"] == 1
    assert (task.state, task.reason_code, task.phase) == (State.FAILED, Code.CARD_LOST, Phase.LEAVING)
    assert task.reason_params == {"card": node.cards.get().uuid, "node": node.name}
    assert task.last_error["code"] == Code.CARD_LOST
    assert untouched.state == State.RUNNING
    # it holds its room until the node confirms the end, and is then rebuilt
    assert Claim.objects.get(task=task).released_at is None
    Claim.objects.filter(task=task).update(released_at=later)
    assert sweep(later + timedelta(seconds=5))["rebuilt"] == 1


@pytest.mark.req("RECOV-04", "LIFE-04")
def test_a_stop_holds_for_what_lost_its_card_on_its_way_to_sleep(now, listening, up, settings):
    settings.CARD_LOST_S = 0.0
    node = factories.make_node()
    task = up(node)
    services.request_sleep(by="ann", task=task, now=now)
    vanish(node)
    sweep(now)
    task.refresh_from_db()
    assert (task.state, task.desired) == (State.FAILED, Desired.SLEEP)

    stop = {"actor": SYSTEM, "tasks": [task], "why": reason(Code.STOP_REQUESTED), "now": now}
    assert [services.request_stop(**stop).moved for _ in range(2)] == [1, 0]
    Claim.objects.filter(task=task).update(released_at=now)
    sweep(now)
    task.refresh_from_db()
    assert (task.state, task.desired) == (State.STOPPED, Desired.STOP)


@pytest.mark.req("RECOV-04")
def test_a_card_that_is_back_in_time_is_not_lost(now, listening, up):
    node = factories.make_node()
    task = up(node)
    vanish(node)
    sweep(now)
    Card.objects.filter(node=node).update(present=True)
    sweep(now + timedelta(seconds=5))
    vanish(node)

    assert sweep(now + timedelta(seconds=11))["lost_cards"] == 0
    task.refresh_from_db()
    assert task.state == State.RUNNING


@pytest.mark.req("RECOV-04")
def test_a_silent_node_tells_nothing_of_its_cards(now, listening, up, settings):
    settings.CARD_LOST_S = 0.0
    node = factories.make_node(last_seen_at=now - timedelta(minutes=2))
    factories.make_node()
    task = up(node)
    vanish(node)
    done = sweep(now)

    task.refresh_from_db()
    assert (done["lost_cards"], task.reason_code) == (0, Code.NODE_LOST)


@pytest.mark.req("RECOV-04", "LIFE-07")
def test_training_on_a_lost_card_fails_for_good(now, listening, up, settings):
    settings.CARD_LOST_S = 0.0
    node = factories.make_node()
    task = up(node, factories.make_group(task_type=TaskType.TRAINING))
    vanish(node)
    sweep(now)
    Claim.objects.update(released_at=now)
    assert sweep(now + timedelta(seconds=5))["rebuilt"] == 0
    task.refresh_from_db()
    assert (task.state, task.reason_code) == (State.FAILED, Code.CARD_LOST)


@pytest.mark.req("RECOV-02")
def test_no_more_than_so_many_are_taken_off_within_a_minute(now, listening, up, settings):
    settings.EVICTIONS_PER_MINUTE = 2
    lost = factories.make_node(cards=4, last_seen_at=now - timedelta(minutes=1))
    other = factories.make_node()
    tasks = [up(lost, factories.make_group(priority=priority)) for priority in (0, 5, 1)]

    done = sweep(now)
    assert (done["lost"], done["held_back"]) == (2, 1)
    for task in tasks:
        task.refresh_from_db()
    assert [task.state for task in tasks] == [State.RUNNING, State.PENDING, State.PENDING]
    assert (tasks[0].reason_code, tasks[0].reason_params) == (Code.EVICTIONS_CAPPED, {"max": 2})

    def again(seconds):
        Liveness.objects.filter(node=other).update(last_seen_at=now + timedelta(seconds=seconds))
        return sweep(now + timedelta(seconds=seconds))

    assert again(10)["held_back"] == 1
    assert again(60)["lost"] == 1
    assert again(65)["held_back"] == 0
    tasks[0].refresh_from_db()
    assert tasks[0].reason_code == Code.NODE_LOST


@pytest.mark.req("RECOV-02")
def test_what_was_held_back_says_so_no_more_once_its_node_is_back(now, listening, up, settings):
    settings.EVICTIONS_PER_MINUTE = 0
    lost = factories.make_node(last_seen_at=now - timedelta(minutes=1))
    factories.make_node()
    task = up(lost)
    assert sweep(now)["held_back"] == 1
    Liveness.objects.update(last_seen_at=now, declared_lost_at=None)
    assert sweep(now)["held_back"] == 0

    task.refresh_from_db()
    assert (task.state, task.reason_code, task.reason_params) == (State.RUNNING, Code.READY, {})


@pytest.mark.req("RECOV-02")
def test_all_nodes_silent_for_hours_move_nothing_and_the_first_one_back_ends_it(now, listening, up):
    nodes = [factories.make_node(last_seen_at=now - timedelta(seconds=60)) for _ in range(2)]
    tasks = [up(node) for node in nodes]
    for minute in range(0, 600, 100):
        for second in (0, 5):
            sweep(now + timedelta(minutes=minute, seconds=second))
    assert not Event.objects.filter(code=Code.NODE_LOST).exists()
    assert not Liveness.objects.filter(declared_lost_at__isnull=False).exists()

    moment = now + timedelta(hours=11)
    for seconds in range(0, 45, 5):  # it listens for NODE_SILENT_S before it judges
        Liveness.objects.filter(node=nodes[0]).update(last_seen_at=moment + timedelta(seconds=seconds))
        sweep(moment + timedelta(seconds=seconds))
    states = dict(Task.objects.values_list("pk", "state"))
    assert [states[task.pk] for task in tasks] == [State.RUNNING, State.PENDING]
