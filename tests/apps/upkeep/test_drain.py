"""Node operations (LIFE-09): drain moves, maintenance refuses, delete clears; nothing is lost on the way."""

from datetime import timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code
from agent.contract.states import Desired, Observed, Phase, State, TaskType
from apps.alerts.models import Alert
from apps.core import leases
from apps.core.models import AuditEntry
from apps.fleet.models import Card, Duty, Node, Port
from apps.fleet.services import authenticate
from apps.fleet.services.alerts import raise_alert
from apps.scheduling.loop import place
from apps.tenants.scope import viewer_of
from apps.upkeep import services
from apps.workloads.models import Event, Task
from apps.workloads.selectors import count_for_quota, desired_of
from apps.workloads.services import claim_task
from apps.workloads.services.creating import OWN_FIELDS
from tests import factories
from tests.apps.core.threads import run_at_once
from tests.apps.upkeep.work import get_ready, replacement_of, report, routed, run_drain, serving
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-09")]


def step_of(api_client, operator, node):
    work = api_client(operator).get(f"/api/v1/nodes/{node.public_id}/work").json()
    assert all(left["text"] and "drain_" not in left["text"] for left in work["left"])
    return [left["step"] for left in work["left"]]


def turn(api_client, operator, node, what):
    answer = api_client(operator).post(f"/api/v1/nodes/{node.public_id}/{what}")
    assert answer.status_code == 202, answer.content
    return answer.json()


def test_the_old_one_serves_until_its_replacement_is_ready_and_is_removed_then(api_client, operator, old):
    new = factories.make_node("new")
    task = serving(old)
    answer = turn(api_client, operator, old, "drain")
    assert (answer["duty"], answer["changed"]) == ("drain", True)
    assert [(left["task_id"], left["why"]) for left in answer["left"]] == [(task.public_id, "drain_moving")]
    assert answer["next"]["code"] == "upkeep_emptying"
    Node.objects.filter(pk=old.pk).update(duty_since=NOW)
    assert run_drain()["begun"] == 1
    second = replacement_of(task)
    assert (second.state, second.node, second.group_id, second.rank) == (
        State.SCHEDULING,
        new,
        task.group_id,
        1,
    )
    assert routed() == {task.public_id}
    assert step_of(api_client, operator, old) == ["starting"]
    assert run_drain()["settled"] == 0  # still starting: nothing leaves

    get_ready(second)
    assert routed() == {task.public_id, second.public_id}
    assert run_drain()["settled"] == 1
    task.refresh_from_db()
    second.refresh_from_db()
    assert (task.state, second.rank, second.replaces_id) == (State.DRAINING, 0, None)
    assert routed() == {second.public_id}
    # its container runs on for the calls that run
    assert [want.desired for want in desired_of(old)] == [Desired.RUN]
    assert step_of(api_client, operator, old) == ["switched"]
    assert run_drain(NOW + timedelta(seconds=settings.DRAIN_DEADLINE_S - 1))["stopped"] == 0

    late = NOW + timedelta(seconds=settings.DRAIN_DEADLINE_S)
    assert run_drain(late) | {"waiting": 0} == {
        **{"nodes": 1, "settled": 0, "stopped": 1, "removed": 0},
        **{"begun": 0, "moved": 0, "evicted": 0, "unplaced": 0, "waiting": 0},
    }
    assert [want.desired for want in desired_of(old)] == [Desired.STOP]
    assert step_of(api_client, operator, old) == ["stopping"]
    again = turn(api_client, operator, old, "drain")
    assert again["changed"] is False
    report(task, Observed.GONE)
    assert run_drain(late)["removed"] == 1
    work = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()
    assert work["left"] == [] and work["next"]["code"] == "upkeep_empty"
    group = task.group
    assert work["done"] == [{"tenant": group.tenant.slug, "service": group.name, "step": "done"}]
    assert [one.pk for one in group.tasks.all()] == [second.pk]
    assert Event.objects.filter(group=group, to_state=State.DRAINING, task=None).count() == 1
    assert AuditEntry.objects.filter(verb="drain_node").count() == 1


def test_a_replacement_is_its_services_own_and_has_all_of_its_intent(act, old):
    factories.make_node("new")
    task = serving(old, env={"SECRET": "x"}, gpu_type="", timeout_seconds=9, model_path="/models/other.gguf")
    services.drain_node(actor=act, node=old, now=NOW)
    run_drain()
    second = replacement_of(task)
    for field in Task._meta.concrete_fields:
        if field.attname not in OWN_FIELDS:
            assert getattr(second, field.attname) == getattr(task, field.attname), field.attname
    assert {field.attname for field in Task._meta.concrete_fields} >= OWN_FIELDS


def test_a_pair_counts_as_one_in_quotas_and_answers(api_client, act, tenant, member, old):
    factories.make_node("new")
    group = factories.make_group(tenant, member, state=State.RUNNING)
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    seen = []

    def look():
        counts = count_for_quota(tenant)
        answer = api_client(member).get(f"/api/v1/task-groups/{group.public_id}").json()
        roles = sorted(one["role"] for one in answer["tasks"])
        seen.append(((counts.replicas, counts.gpus, answer["replicas"]["current"], answer["gpus"]), roles))

    look()
    run_drain()
    look()
    get_ready(replacement_of(task))
    look()
    run_drain()
    look()
    assert [numbers for numbers, _ in seen] == [(1, 1, 1, 1)] * 4
    assert [roles for _, roles in seen][1:] == [
        ["replacement", "replica"],
        ["replacement", "replica"],
        ["replica", "retired"],
    ]


def test_without_a_place_elsewhere_it_serves_on_and_says_why_in_numbers(api_client, operator, act, old):
    task = serving(old)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["begun"] == 0
    task.refresh_from_db()
    assert (task.state, task.node, task.phase) == (State.RUNNING, old, Phase.READY)
    (left,) = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()["left"]
    assert (left["step"], left["why"]) == ("waiting", "drain_no_place")
    assert "none of 1 nodes" in left["text"] and "closed" in left["text"], left["text"]
    factories.make_node("new")  # a place comes up
    assert run_drain()["begun"] == 1


def test_a_service_of_two_moves_one_at_a_time(act, old):
    factories.make_node("new", cards=2)
    group = factories.make_group(state=State.RUNNING)
    factories.make_card(old, 1)
    first = serving(old, group)
    second = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["begun"] == 1
    assert run_drain()["begun"] == 0  # the first one's is still starting there
    old.refresh_from_db()
    assert old.duty_notes == {second.public_id: {"code": "drain_in_turn", "params": {}}}
    get_ready(replacement_of(first))
    done = run_drain()
    assert (done["settled"], done["begun"]) == (1, 1)
    assert replacement_of(second).node.name == "new"


def test_so_many_start_at_once_in_the_whole_fleet_and_each_tenant_in_turn(act, old, settings):
    settings.DRAIN_AT_ONCE = 2
    factories.make_node("new", cards=4)
    for index in (1, 2, 3):
        factories.make_card(old, index)
    one, two = factories.make_tenant(), factories.make_tenant()
    mine = [serving(old, factories.make_group(one, state=State.RUNNING)) for _ in range(3)]
    theirs = serving(old, factories.make_group(two, state=State.RUNNING))
    services.drain_node(actor=act, node=old, now=NOW)
    assert run_drain()["begun"] == 2
    pairs = list(Task.objects.filter(replaces__isnull=False).order_by("pk"))
    assert [pair.replaces_id for pair in pairs] == [mine[0].pk, theirs.pk]
    assert run_drain()["begun"] == 0
    old.refresh_from_db()
    assert old.duty_notes[mine[2].public_id] == {"code": "drain_in_line", "params": {"at_once": 2}}
    get_ready(pairs[0])
    assert run_drain()["begun"] == 1


def test_what_is_no_inference_stays_until_it_ends_or_is_stopped(api_client, operator, act, old):
    factories.make_node("new")
    group = factories.make_group(task_type=TaskType.TRAINING, state=State.RUNNING)
    task = serving(old, group)
    services.drain_node(actor=act, node=old, now=NOW)
    done = run_drain()
    assert (done["begun"], done["moved"], done["evicted"]) == (0, 0, 0)
    task.refresh_from_db()
    assert task.node == old
    left = api_client(operator).get(f"/api/v1/nodes/{old.public_id}/work").json()["left"]
    assert (left[0]["step"], left[0]["why"]) == ("staying", "drain_needs_word")


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
    assert (busy.status_code, busy.json()["code"]) == (
        409,
        "node_holds_tasks",
    ) and "force=old" in busy.json()["detail"]
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
