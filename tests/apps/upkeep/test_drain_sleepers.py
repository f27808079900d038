"""Sleepers on a node that is emptied: they sleep on without a place; what wakes there moves."""

import pytest

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, State
from apps.fleet.models import Duty, Node
from apps.workloads import services
from apps.workloads.models import Claim, Task
from apps.workloads.selectors import desired_of
from tests import factories
from tests.apps.upkeep.work import report, run_drain, serving
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-09", "SLEEP-03")]


@pytest.fixture
def node() -> Node:
    return factories.make_node("leaving")


def asleep(node: Node) -> Task:
    task = serving(node)
    services.request_sleep(by="ann", task=task, now=NOW)
    report(task, Observed.ASLEEP)
    assert task.state == State.SLEEPING
    return task


def empty(node: Node) -> None:
    Node.objects.filter(pk=node.pk).update(duty=Duty.DRAIN, duty_since=NOW, cordoned=True)


def test_a_sleeper_gives_its_place_up_and_the_node_gets_empty(node, api_client, operator):
    task = asleep(node)
    empty(node)
    assert run_drain()["unplaced"] == 1 and run_drain()["unplaced"] == 0
    task.refresh_from_db()
    assert (task.state, task.node, task.reason_code) == (State.SLEEPING, None, Code.ASLEEP_NO_PLACE)
    work = api_client(operator).get(f"/api/v1/nodes/{node.public_id}/work").json()
    assert all(left["text"] for left in work["left"])
    assert [(want.desired, want.sleep) for want in desired_of(node)] == [(Desired.STOP, None)]
    report(task, Observed.GONE)
    assert task.state == State.SLEEPING and not Claim.objects.filter(released_at__isnull=True).exists()
    assert api_client(operator).get(f"/api/v1/nodes/{node.public_id}/work").json()["left"] == []
    factories.make_node("other")
    assert services.request_wake(by="ann", task=task, now=NOW).did == services.Did.PLACING


def test_what_falls_asleep_is_waited_for_and_then_gives_its_place_up(node):
    task = serving(node)
    services.request_sleep(by="ann", task=task, now=NOW)
    empty(node)
    assert run_drain()["unplaced"] == 0
    report(task, Observed.ASLEEP)
    assert run_drain()["unplaced"] == 1


def test_what_wakes_there_is_moved_like_what_starts(node):
    task = asleep(node)
    services.request_wake(by="ann", task=task, now=NOW)
    empty(node)
    other = factories.make_node("other")
    assert run_drain()["moved"] == 1
    task.refresh_from_db()
    assert (task.state, task.node, task.attempt) == (State.SCHEDULING, other, 2)
    assert [want.desired for want in desired_of(node)] == [Desired.STOP]


def test_a_replica_that_wakes_elsewhere_is_waited_for_before_its_sibling_moves(node):
    group = factories.make_group(state=State.RUNNING)
    task = serving(node, group)
    sleeper = serving(factories.make_node("of the sleeper"), group)
    services.request_sleep(by="ann", task=sleeper, now=NOW)
    report(sleeper, Observed.ASLEEP)
    services.request_wake(by="ann", task=sleeper, now=NOW)
    factories.make_node("free")
    empty(node)
    assert run_drain()["begun"] == 0
    node.refresh_from_db()
    assert node.duty_notes == {task.public_id: {"code": "drain_in_turn", "params": {}}}
    report(sleeper, Observed.READY)
    assert run_drain()["begun"] == 1
