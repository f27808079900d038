"""A dry run says what a creation would do, and does nothing (SVC-15)."""

import json

import pytest
from django.apps import apps
from django.utils import timezone

from agent.contract.states import State
from apps.inference.api.dry_run import DryRunCardShape, DryRunShape, DryRunTaskShape
from apps.tenants.models import Quota, TenantStatus
from apps.workloads.models import Task, TaskGroup
from tests import factories
from tests.apps.inference.bodies import ABSENT, body

pytestmark = [pytest.mark.django_db, pytest.mark.req("SVC-15")]

URL = "/api/v1/task-groups?dry_run=true"


@pytest.fixture
def now():
    return timezone.now()


@pytest.fixture
def node(now):
    def make(name, **fields):
        return factories.make_node(name, now=now, last_seen_at=now, **fields)

    return make


@pytest.fixture
def ask(client_of_member, known_model):
    """The answer to a dry run of the good request with changes; every table stays as it was."""

    def send(client=None, **changes):
        before = every_row()
        answer = (client or client_of_member).post(URL, body(**changes))
        assert every_row() == before
        return answer

    return send


def every_row():
    return {
        model._meta.label: sorted(repr(row) for row in model._default_manager.values())
        for model in apps.get_models()
        if model._meta.managed and not model._meta.proxy
    }


def only(answer):
    assert answer.status_code == 200, answer.content
    told = answer.json()
    assert told["dry_run"] is True and set(told) == set(DryRunShape().fields)
    (task,) = told["tasks"]
    assert set(task) == set(DryRunTaskShape().fields)
    return told, task


def occupy(node, tenant, *, percent=None, priority=0, now, **fields):
    group = factories.make_group(
        tenant, priority=priority, gpu_memory_utilization=percent, preemptible=True, **fields
    )
    ports = [{"container_port": 8000, "host_port": 0}]  # without any it would not count (SCHED-16)
    task = factories.make_task(group, node=node, attempt=1, state=State.RUNNING, phase="ready", ports=ports)
    factories.make_claim(task, node, percent=percent)
    return task


def test_it_says_where_and_on_which_card(ask, node):
    node("rack-1", cards=2)
    told, task = only(ask())
    assert (told["fits"], told["replicas"], told["gpus"]) == (True, 1, 1)
    assert told["estimated_gpu_memory_mb"] > 2000
    assert (task["outcome"], task["node"], task["preempts"]) == ("would_start", "rack-1", 0)
    assert set(task["cards"][0]) == set(DryRunCardShape().fields) and task["cards"][0]["index"] == 0
    assert "rack-1" in task["text"] and "RTX 4090" in task["text"]
    assert task["refusals"] == task["nodes"] == []


def test_nothing_fits_and_the_numbers_say_why(ask, node, now, tenant):
    full = node("full")
    occupy(full, tenant, percent=60, now=now)
    told, task = only(ask(gpu_memory_utilization=35))
    assert not told["fits"] and task["outcome"] == "would_wait" and task["node"] is None
    assert task["refusals"][0]["code"] == "insufficient_resources"
    assert [word["node"] for word in task["nodes"]] == ["full"]
    assert all(reason["text"] for reason in task["refusals"])


def test_those_who_wait_before_it_take_their_places_first(ask, node, now, tenant):
    node("rack-1")
    factories.make_task(factories.make_group(tenant), now=now)
    told, task = only(ask(gpu_memory_utilization=ABSENT))
    assert (told["fits"], task["outcome"]) == (False, "would_wait")
    assert only(ask(gpu_memory_utilization=ABSENT, priority=5))[0]["fits"]


def test_every_replica_is_told(ask, node):
    node("rack-1")
    three = {"parallelism": "split", "world_size": 3, "max_replicas": 3, "task.name": "worker"}
    told = ask(**three, **{"task.ports": [{"container_port": 8000}]}).json()
    assert [task["name"] for task in told["tasks"]] == ["worker-0", "worker-1", "worker-2"]
    assert [task["outcome"] for task in told["tasks"]] == ["would_start"] * 2 + ["would_wait"]
    assert not told["fits"] and told["replicas"] == 3


def test_room_that_others_would_leave_is_told_by_number_alone(ask, node, now, tenant):
    theirs = factories.make_tenant("their-tenant")
    factories.make_shared_group(tenant, theirs)
    occupy(node("rack-1"), theirs, now=now, name="their-service")
    answer = ask(gpu_memory_utilization=ABSENT, priority=9)
    _, task = only(answer)
    assert (task["outcome"], task["node"], task["preempts"]) == ("would_preempt", "rack-1", 1)
    assert "their-" not in answer.content.decode()


def test_nothing_is_told_of_nodes_and_work_of_others(ask, node, now):
    other = factories.make_tenant("their-tenant")
    node("their-node", allowed_tenants=[other])
    shared = node("shared")
    busy = occupy(shared, other, now=now, name="their-service")
    answer = ask()
    _, task = only(answer)
    assert task["outcome"] == "would_wait" and [word["node"] for word in task["nodes"]] == ["shared"]
    for secret in ("their-", other.public_id, busy.public_id, busy.group.public_id):
        assert secret not in answer.content.decode()


def test_an_operator_hears_whose_work_it_is(ask, node, now, tenant, operator, api_client):
    other = factories.make_tenant("their-tenant")
    occupy(node("shared"), other, now=now, name="their-service")
    _, task = only(ask(api_client(operator), tenant=tenant.slug))
    assert "their-tenant" in json.dumps(task["nodes"])


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"task.image": "no tag"}, 400, "invalid"),
        ({"gpu_memory_utilization": 95}, 400, "invalid"),
        ({"name": "taken"}, 409, "name_taken"),
        ({"parallelism": "split", "world_size": 9, "max_replicas": 9}, 403, "quota_exceeded"),
    ],
)
def test_it_is_refused_as_the_creation_would_be(ask, tenant, member, changes, status, code):
    factories.make_group(tenant, member, name="taken")
    Quota.objects.update(replicas=8)
    answer = ask(**changes)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_tenant_without_a_quota_row_gets_none(ask, tenant):
    Quota.objects.filter(tenant=tenant).delete()
    assert ask().status_code == 200
    assert not Quota.objects.filter(tenant=tenant).exists()


def test_a_suspended_tenant_is_refused_and_a_stranger_finds_no_tenant(ask, tenant, api_client):
    assert ask(api_client(factories.make_member()), tenant=tenant.slug).status_code in (403, 404)
    tenant.status, tenant.suspended_reason = TenantStatus.SUSPENDED, "unpaid"
    tenant.save()
    answer = ask()
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")


@pytest.mark.parametrize("word", ["yes", "1", "True", ""])
def test_another_word_than_true_and_false_makes_nothing(client_of_member, known_model, word):
    answer = client_of_member.post(f"/api/v1/task-groups?dry_run={word}", body())
    assert answer.status_code == 400 and answer.json()["errors"][0]["field"] == "dry_run"
    assert not TaskGroup.objects.exists()
    assert client_of_member.post("/api/v1/task-groups?dry_run=false", body()).status_code == 201
    assert Task.objects.count() == 1
