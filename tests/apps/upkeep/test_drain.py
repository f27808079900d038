"""Node operations (LIFE-09): drain moves, maintenance refuses, delete clears; nothing is lost on the way."""

import pytest

from agent.contract.codes import Code
from agent.contract.states import Desired, Phase, State, TaskType
from apps.alerts.models import Alert
from apps.core import leases
from apps.core.models import AuditEntry
from apps.fleet.models import Card, Duty, Node, Port
from apps.fleet.services import authenticate
from apps.fleet.services.alerts import raise_alert
from apps.scheduling.loop import place
from apps.tenants.scope import viewer_of
from apps.upkeep import services
from apps.upkeep.loop import drain
from apps.workloads.models import Claim, Task
from apps.workloads.selectors import desired_of
from apps.workloads.services import claim_task
from tests import factories
from tests.apps.core.threads import run_at_once
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-09")]


@pytest.fixture
def old():
    return factories.make_node("old")


@pytest.fixture
def act(operator):
    return viewer_of(operator)


def run_drain():
    lease = leases.acquire("upkeep.drain", "test", 30)
    assert lease is not None
    try:
        return drain(lease, NOW)
    finally:
        lease.release()


def serving(node, group=None, *, state=State.RUNNING, incarnation="run-1", **fields):
    """A task that serves on a node, with its claim."""
    group = group or factories.make_group(state=state)
    phase = Phase.READY if state == State.RUNNING else Phase.LOADING
    ports = [{"container_port": 8000, "host_port": 0}]
    task = factories.make_task(group, state=state, phase=phase, node=node, attempt=1, ports=ports, **fields)
    factories.make_claim(task, node, incarnation=incarnation)
    Port.objects.create(
        node=node, number=20000 + task.pk, owner=task.public_id, attempt=1, container_port=8000
    )
    return task


def turn(api_client, operator, node, what):
    answer = api_client(operator).post(f"/api/v1/nodes/{node.public_id}/{what}")
    assert answer.status_code == 202, answer.content
    return answer.json()


def test_a_drain_moves_inference_to_another_node_and_says_what_is_left(api_client, operator, old):
    new = factories.make_node("new")
    task = serving(old)
    answer = turn(api_client, operator, old, "drain")
    assert (answer["duty"], answer["changed"]) == ("drain", True)
    assert [(left["task_id"], left["why"]) for left in answer["left"]] == [(task.public_id, "drain_moving")]
    assert answer["next"]["code"] == "upkeep_emptying" and "short gap" in answer["next"]["text"]
    assert run_drain() == {"nodes": 1, "moved": 1, "waiting": 0}
    task.refresh_from_db()
    assert (task.state, task.node, task.attempt, task.rebuilds) == (State.SCHEDULING, new, 2, 0)
    # the old attempt is told to stop, and holds its room until its node says that it is gone
    assert [(want.attempt, want.desired) for want in desired_of(old)] == [(1, Desired.STOP)]
    again = turn(api_client, operator, old, "drain")
    assert again["changed"] is False and again["left"][0]["why"] == "drain_leaving"
    Claim.objects.filter(node=old).update(released_at=NOW)
    work = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()
    assert work["left"] == [] and work["next"]["code"] == "upkeep_empty"
    assert AuditEntry.objects.filter(verb="drain_node").count() == 1


def test_without_a_place_elsewhere_it_goes_on_where_it_is_and_says_why(api_client, operator, act, old):
    task = serving(old)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["moved"] == 0
    task.refresh_from_db()
    assert (task.state, task.node, task.phase) == (State.RUNNING, old, Phase.READY)
    left = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()["left"]
    assert left[0]["why"] == "drain_no_place" and "none of 1 nodes" in left[0]["text"]
    factories.make_node("new")  # a place comes up
    assert run_drain()["moved"] == 1


def test_a_service_of_two_moves_one_at_a_time(act, old):
    factories.make_node("new", cards=2)
    group = factories.make_group(state=State.RUNNING)
    factories.make_card(old, 1)
    first = serving(old, group)
    second = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain() == {"nodes": 1, "moved": 1, "waiting": 1}
    assert run_drain()["moved"] == 0  # the first is still starting there
    old.refresh_from_db()
    assert old.duty_notes == {second.public_id: {"code": "drain_in_turn", "params": {}}}
    Task.objects.filter(pk=first.pk).update(state=State.RUNNING, phase=Phase.READY)
    assert run_drain()["moved"] == 1
    second.refresh_from_db()
    assert second.node.name == "new"


def test_what_is_no_inference_stays_until_it_ends_or_is_stopped(api_client, operator, act, old):
    factories.make_node("new")
    group = factories.make_group(task_type=TaskType.TRAINING, state=State.RUNNING)
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["moved"] == 0
    task.refresh_from_db()
    assert task.node == old
    left = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()["left"]
    assert left[0]["why"] == "drain_needs_word"


def test_what_nobody_took_on_yet_leaves_nothing_behind(act, old):
    new = factories.make_node("new")
    task = serving(old, state=State.SCHEDULING, incarnation="")
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["moved"] == 1
    task.refresh_from_db()
    assert task.node == new
    assert desired_of(old) == [] and not Port.objects.filter(node=old).exists()


def test_a_node_that_is_emptied_gets_no_new_work_and_is_not_just_uncordoned(api_client, operator, act, old):
    services.drain_node(actor=act, node=old, now=NOW)
    factories.make_task()
    lease = leases.acquire("scheduling.place", "test", 30)
    assert place(lease, NOW)["placed"] == 0
    refused = api_client(operator).patch(f"/api/v1/nodes/{old.public_id}", {"cordoned": False})
    assert (refused.status_code, refused.json()["code"]) == (409, "node_leaving")
    assert turn(api_client, operator, old, "resume")["next"]["code"] == "upkeep_in_service"
    assert place(lease, NOW)["placed"] == 1


def test_in_maintenance_nothing_is_taken_on_and_alerts_are_held_back(act, old):
    task = serving(old, state=State.SCHEDULING, incarnation="")
    services.maintain_node(actor=act, node=old, now=NOW)
    answer = claim_task(node=old, incarnation="run-1", task_id=task.public_id, attempt=1, now=NOW)
    assert answer.code == Code.CLAIM_LOST
    raise_alert(node=old, code="clock_skew", now=NOW, skew_s=90)
    assert not Alert.objects.exists()
    raise_alert(node=old, code="machine_mismatch", now=NOW)  # somebody has its credential
    assert Alert.objects.count() == 1
    services.resume_node(actor=act, node=old, now=NOW)
    answer = claim_task(node=old, incarnation="run-1", task_id=task.public_id, attempt=1, now=NOW)
    assert answer.task_id == task.public_id


def test_a_node_that_holds_work_is_deleted_by_its_name_only(api_client, operator, old):
    task = serving(old)
    path = f"/api/v1/nodes/{old.public_id}"
    busy = api_client(operator).delete(path)
    assert (busy.status_code, busy.json()["code"]) == (409, "node_busy") and "force=old" in busy.json()[
        "detail"
    ]
    wrong = api_client(operator).delete(f"{path}?force=yes")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "force")
    task.refresh_from_db()
    assert task.state == State.RUNNING
    done = api_client(operator).delete(f"{path}?force=old")
    assert done.status_code == 200 and done.json()["claims_released"] == 1
    assert done.json()["next"]["code"] == "upkeep_deleted"
    task.refresh_from_db()
    assert (task.state, task.node_id, task.rebuilds) == (State.PENDING, None, 0)
    assert authenticate(old.public_id, "node-secret") is None
    assert not Card.objects.filter(node=old.pk).exists() and not Port.objects.filter(node=old.pk).exists()
    assert api_client(operator).delete(path).status_code == 404


def test_an_empty_node_is_deleted_without_a_word(api_client, operator, old):
    assert api_client(operator).delete(f"/api/v1/nodes/{old.public_id}").status_code == 200
    assert AuditEntry.objects.get(verb="delete_node").object_name == "old"


def test_members_who_see_a_node_turn_nothing(api_client, member, old):
    for what in ("drain", "maintenance", "resume"):
        assert api_client(member).post(f"/api/v1/nodes/{old.public_id}/{what}").status_code == 403
    assert api_client(member).delete(f"/api/v1/nodes/{old.public_id}").status_code == 403
    assert Node.objects.get().duty == Duty.SERVICE


@pytest.mark.django_db(transaction=True)
def test_two_operators_who_drain_at_once_leave_one_act(operator, old):
    actor = viewer_of(operator)
    changed = run_at_once(2, lambda _: services.drain_node(actor=actor, node=Node.objects.get(), now=NOW))
    assert sorted(changed) == [False, True]
    assert AuditEntry.objects.filter(verb="drain_node").count() == 1
