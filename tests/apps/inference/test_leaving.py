"""Stopping and deleting: what it does now, what comes next, and that a repeat is harmless."""

from collections.abc import Callable

import pytest
from rest_framework.response import Response
from rest_framework.test import APIClient

from agent.contract.states import Phase, State
from apps.core import versions
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.tenants.models import ApiKey, Tenant, User
from apps.workloads.models import Claim, Task, TaskGroup
from tests import factories
from tests.apps.inference.conftest import URL

pytestmark = pytest.mark.django_db
Post = Callable[..., Response]


def run_it(group_id: str) -> Claim:
    """Pretend that an agent runs the group's only task."""
    task = Task.objects.get(group__public_id=group_id)
    node = factories.make_node()
    Task.objects.filter(pk=task.pk).update(
        state=State.RUNNING, phase=Phase.READY, attempt=1, node=node, running_since=factories.NOW
    )
    TaskGroup.objects.filter(public_id=group_id).update(state=State.RUNNING)
    task.refresh_from_db()
    return factories.make_claim(task, node, incarnation="run-1")


@pytest.mark.req("SVC-12")
def test_deleting_hides_at_once_and_frees_on_the_nodes_word(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    claim = run_it(made["id"])
    before = versions.read()
    answer = client_of_member.delete(f"{URL}/{made['id']}")
    assert answer.status_code == 202
    told = answer.json()
    assert (told["already"], told["tasks_stopping"], told["routes_removed"]) == (False, 1, 1)
    assert told["endpoint_removed"] is True
    assert told["next"]["code"] == "delete_waits_for_nodes"
    assert versions.read() > before
    assert ModelRoute.objects.count() == 0
    assert InferenceEndpoint.objects.count() == 0
    assert ApiKey.objects.get().revoked_at is not None
    claim.refresh_from_db()
    assert claim.released_at is None, "cards are freed by the node's word only"
    assert Task.objects.get().state == State.STOPPING
    assert client_of_member.get(f"{URL}/{made['id']}").status_code == 404
    assert client_of_member.get(URL).json()["total"] == 0


@pytest.mark.req("SVC-12")
def test_deleting_twice_is_harmless_and_says_so(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    run_it(made["id"])
    client_of_member.delete(f"{URL}/{made['id']}")
    versions_before, task = versions.read(), Task.objects.get()
    again = client_of_member.delete(f"{URL}/{made['id']}")
    assert (again.status_code, again.json()["already"]) == (202, True)
    assert again.json()["routes_removed"] == 0
    assert again.json()["endpoint_removed"] is False
    assert versions.read() == versions_before
    assert Task.objects.get().version == task.version


@pytest.mark.req("SVC-12")
def test_a_name_is_free_again_after_deletion(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    answer = client_of_member.delete(f"{URL}/{made['id']}").json()
    assert answer["next"]["code"] == "delete_complete"
    assert post().status_code == 201


@pytest.mark.req("LIFE-04")
def test_stopping_a_group_keeps_route_and_endpoint(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    run_it(made["id"])
    answer = client_of_member.post(f"{URL}/{made['id']}/stop")
    assert answer.status_code == 202
    told = answer.json()
    assert (told["status"], told["did"], told["stopping"], told["already"]) == ("stopping", "stopping", 1, 0)
    assert (told["code"], told["next"]["code"]) == ("stopping_tasks", "next_node_confirms")
    again = client_of_member.post(f"{URL}/{made['id']}/stop").json()
    assert (again["stopping"], again["already"]) == (0, 1)
    shown = client_of_member.get(f"{URL}/{made['id']}").json()
    assert shown["routes"]
    assert shown["endpoint"]
    assert shown["reason"]["code"] == "stop_requested"


@pytest.mark.req("LIFE-04")
def test_stopping_a_waiting_task_is_done_at_once(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    task = made["tasks"][0]["id"]
    answer = client_of_member.post(f"/api/v1/tasks/{task}/stop").json()
    assert (answer["id"], answer["status"], answer["did"]) == (task, "stopped", "stopped")
    assert (answer["code"], answer["next"]["code"]) == ("stopped_at_once", "next_nothing")
    assert client_of_member.get(f"/api/v1/tasks/{task}").json()["status"] == "stopped"


@pytest.mark.req("SVC-12", "LIFE-06")
def test_what_was_stopped_is_started_again_and_says_that_somebody_asked(
    post: Post, client_of_member: APIClient, member: User
) -> None:
    made = post().json()
    client_of_member.post(f"{URL}/{made['id']}/stop")
    answer = client_of_member.post(f"{URL}/{made['id']}/start")
    assert answer.status_code == 202
    told = answer.json()
    assert (told["status"], told["did"], told["starting"]) == ("pending", "starting", 1)
    assert client_of_member.post(f"{URL}/{made['id']}/start").json()["starting"] == 0, "a repeat is harmless"
    *_, last = client_of_member.get(f"{URL}/{made['id']}/events").json()["items"]
    assert (last["reason"]["code"], last["actor"]) == ("start_requested", member.username)


@pytest.mark.req("SVC-12", "TEN-01")
def test_a_suspended_tenants_services_are_not_started_again(
    post: Post, client_of_member: APIClient, tenant: Tenant
) -> None:
    made = post().json()
    client_of_member.post(f"{URL}/{made['id']}/stop")
    Tenant.objects.filter(pk=tenant.pk).update(status="suspended", suspended_reason="unpaid")
    answer = client_of_member.post(f"{URL}/{made['id']}/start")
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")


@pytest.mark.req("SVC-12", "TEN-06")
def test_a_group_without_route_or_endpoint_is_deleted_as_well(
    client_of_member: APIClient, tenant: Tenant, member: User
) -> None:
    group = factories.make_group(tenant, member)
    answer = client_of_member.delete(f"{URL}/{group.public_id}").json()
    assert (answer["routes_removed"], answer["endpoint_removed"]) == (0, False)
