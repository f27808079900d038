"""The addresses that move a service: what each answers, by role, in both languages, and how a wake waits."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from rest_framework.response import Response
from rest_framework.test import APIClient

from agent.contract.states import Desired, Phase, State
from apps.core.errors import NotFound
from apps.fleet.models import Liveness, Node
from apps.inference.services.waiting import wait_awake
from apps.tenants.models import Tenant, TenantStatus, User
from apps.workloads.models import Task, TaskGroup
from apps.workloads.services import Act, Did, said
from tests import factories

pytestmark = pytest.mark.django_db
Clients = Callable[..., APIClient]


def brought_to(user: User, state: State, **fields: Any) -> Task:
    """A task with its place, in a state."""
    group = factories.make_group(user.memberships.get().tenant, user, max_replicas=3)
    node = factories.make_node(last_seen_at=None)
    Liveness.objects.filter(node=node).update(last_seen_at=factories.utc_now())
    fields.setdefault("desired", Desired.SLEEP if state == State.SLEEPING else Desired.RUN)
    task = factories.make_task(group, state=state, attempt=1, node=node, **fields)
    factories.make_claim(task, node, incarnation="run-1")
    return task


def send(client: APIClient, task: Task, action: str, **query: Any) -> Response:
    return client.post(f"/api/v1/tasks/{task.public_id}/{action}", {}, query_params=query or None)


@pytest.mark.req("LIFE-04", "SLEEP-01")
def test_each_answer_says_what_it_did_and_what_comes_next(api_client: Clients, member: User) -> None:
    client = api_client(member)
    task = brought_to(member, State.RUNNING, phase=Phase.READY)
    told = send(client, task, "sleep").json()
    assert (told["status"], told["did"], told["code"]) == ("draining", "draining", "sleep_requested")
    assert told["next"]["code"] == "next_falls_asleep" and "60" in told["next"]["text"]
    again = send(client, task, "sleep")
    assert (again.status_code, again.json()["did"]) == (202, "nothing")
    woken = send(client, task, "wake").json()
    assert (woken["did"], woken["wake_requested"]) == ("noted", True)
    assert client.get(f"/api/v1/tasks/{task.public_id}").json()["wake_requested"] is True
    stopped = send(client, task, "stop").json()
    assert (stopped["did"], stopped["status"]) == ("stopping", "stopping")
    assert stopped["next"]["code"] == "next_node_confirms"
    assert send(client, task, "stop").json()["did"] == "nothing"
    refused = send(client, task, "sleep")
    assert (refused.status_code, refused.json()["code"]) == (409, "cannot_sleep")
    chinese = client.post(f"/api/v1/tasks/{task.public_id}/stop", {}, HTTP_ACCEPT_LANGUAGE="zh-hans").json()
    assert chinese["text"] == "它已经在停止的途中。"


@pytest.mark.req("LIFE-04")
def test_scaling_answers_and_refuses_by_field(api_client: Clients, member: User) -> None:
    client = api_client(member)
    task = brought_to(member, State.RUNNING, phase=Phase.READY)
    url = f"/api/v1/task-groups/{task.group.public_id}/scale"
    told = client.put(url, {"replicas": 3}).json()
    assert (told["did"], told["code"], told["replicas"]["current"]) == ("scaled", "scaled_out", 3)
    assert told["next"]["params"] == {"coming": 2, "leaving": 0}
    assert client.put(url, {"replicas": 3}).json()["did"] == "nothing"
    assert TaskGroup.objects.get().created_by == member and Task.objects.count() == 3
    for body in ({"replicas": 4}, {"replicas": 0}, {"replicas": "2"}, {"replicas": True}, {}, {"replica": 1}):
        refused = client.put(url, body)
        assert refused.status_code == 400 and refused.json()["errors"][0]["field"] in ("replicas", "replica")
    assert Task.objects.count() == 3


@pytest.mark.req("TEN-02", "LIFE-04")
@pytest.mark.parametrize("role", ["owner", "admin", "member", "viewer"])
@pytest.mark.parametrize("action", ["sleep", "wake", "stop", "scale"])
def test_who_may_move_a_colleagues_service(api_client: Clients, member: User, role: str, action: str) -> None:
    tenant = member.memberships.get().tenant
    colleague = factories.make_member(tenant, role)
    task = brought_to(member, State.SLEEPING if action == "wake" else State.RUNNING, phase=Phase.READY)
    client = api_client(colleague)
    if action == "scale":
        answer = client.put(f"/api/v1/task-groups/{task.group.public_id}/scale", {"replicas": 2})
    else:
        answer = send(client, task, action)
    expected = {"owner": 202, "admin": 202, "member": 404, "viewer": 403}
    assert answer.status_code == expected[role]
    task.refresh_from_db()
    moved = task.version > 0 or Task.objects.count() == 2
    assert moved == (role in ("owner", "admin"))


@pytest.mark.req("TEN-01", "LIFE-04")
def test_while_suspended_it_sleeps_and_stops_and_neither_wakes_nor_grows(
    api_client: Clients, member: User
) -> None:
    task = brought_to(member, State.SLEEPING)
    Tenant.objects.update(status=TenantStatus.SUSPENDED, suspended_reason="unpaid")
    client = api_client(member)
    refused = send(client, task, "wake")
    assert (refused.status_code, refused.json()["code"]) == (403, "tenant_suspended")
    grown = client.put(f"/api/v1/task-groups/{task.group.public_id}/scale", {"replicas": 3})
    assert (grown.status_code, grown.json()["code"]) == (403, "tenant_suspended")
    assert send(client, task, "sleep").json()["did"] == "nothing"
    assert send(client, task, "stop").json()["did"] == "stopping"


@pytest.mark.req("SLEEP-04", "SVC-13")
def test_an_answer_names_no_node_that_was_closed_to_its_reader(
    api_client: Clients, client: Client, member: User
) -> None:
    task = brought_to(member, State.SLEEPING)
    assert task.node is not None
    Liveness.objects.update(last_seen_at=None)
    Node.objects.update(open_to_all=False)
    answer = send(api_client(member), task, "wake")
    assert answer.json()["code"] == "wake_node_offline" and answer.json()["params"] == {"node": "-"}
    assert task.node.name not in answer.content.decode()
    Node.objects.update(name="another")  # nobody bears the old name any more, as after a deletion
    why = {"code": "node_removed", "params": {"node": task.node.name}}
    Task.objects.update(last_error=why)
    told = api_client(member).get(f"/api/v1/task-groups/{task.group.public_id}").json()["tasks"][0]
    assert told["last_error"]["text"] == f"Node {task.node.name} was deleted by an operator."
    Node.objects.update(name=task.node.name)
    Task.objects.update(desired=Desired.SLEEP)
    client.force_login(member)
    page = client.post(f"/services/{task.group.public_id}/wake/", follow=True)
    assert page.status_code == 200 and task.node.name not in page.content.decode()


@pytest.mark.req("SLEEP-02")
def test_the_time_to_wait_is_checked(api_client: Clients, member: User, settings: Any) -> None:
    settings.WAKE_WAIT_S = 120.0
    task = brought_to(member, State.SLEEPING)
    for wait in ("-1", "121", "soon", "nan", "inf"):
        refused = send(api_client(member), task, "wake", wait=wait)
        assert refused.status_code == 400 and refused.json()["errors"][0]["field"] == "wait"
    assert send(api_client(member), task, "wake", wait="0").json()["did"] == "waking"


WAKES = Act(Did.WAKING, said("wake_requested"), said("next_wakes", within_s=3900))
ERROR = {"code": "load_timeout", "params": {"after_s": 9, "why": "x"}, "exit_code": None, "at": "now"}


def later(task: Task, **fields: Any) -> threading.Thread:
    """Change the task, which wakes or falls asleep by then, from another thread, as an agent's report does
    while a request waits."""

    def change() -> None:
        row = Task.objects.filter(pk=task.pk, state__in=(State.WAKING, State.DRAINING))
        deadline = time.monotonic() + 60
        while not row.update(**fields) and time.monotonic() < deadline:
            time.sleep(0.01)
        connection.close()

    thread = threading.Timer(0.1, change)
    thread.start()
    return thread


@pytest.mark.req("SLEEP-02")
@pytest.mark.django_db(transaction=True)
def test_a_wake_waits_until_it_serves(member: User, settings: Any) -> None:
    settings.WAKE_POLL_S = 0.01
    task = brought_to(member, State.WAKING)
    thread = later(task, state=State.RUNNING, phase=Phase.READY, reason_code="ready")
    act = wait_awake(task, WAKES, wait_s=60)
    thread.join()
    assert (act.did, act.why.code, act.next.code) == (Did.SERVING, "ready", "next_serves")


@pytest.mark.req("SLEEP-02")
@pytest.mark.django_db(transaction=True)
def test_a_wake_of_what_falls_asleep_waits_through_its_sleep(
    api_client: Clients, member: User, settings: Any
) -> None:
    settings.WAKE_POLL_S, settings.WAKE_WAIT_S = 0.01, 60.0
    task = brought_to(member, State.DRAINING, phase=Phase.LEAVING, desired=Desired.SLEEP)

    def sleep_then_wake() -> None:
        row = Task.objects.filter(pk=task.pk)
        deadline = time.monotonic() + 60
        while not row.filter(desired=Desired.RUN).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        for changes in (
            {"state": State.SLEEPING, "phase": Phase.NONE, "reason_code": "asleep"},
            {"state": State.WAKING, "reason_code": "wake_requested"},
            {"state": State.RUNNING, "phase": Phase.READY, "reason_code": "ready"},
        ):
            row.update(**changes)
            time.sleep(0.05)  # long enough to be seen; the answer is the same where it is not
        connection.close()

    thread = threading.Thread(target=sleep_then_wake)
    thread.start()
    answer = send(api_client(member), task, "wake", wait="60")
    thread.join()
    assert (answer.status_code, answer.json()["did"]) == (200, "serving")


@pytest.mark.req("SLEEP-02")
@pytest.mark.django_db(transaction=True)
def test_a_wake_of_what_falls_asleep_ends_its_wait_where_something_is_in_the_way(
    member: User, settings: Any
) -> None:
    settings.WAKE_POLL_S = 0.01
    asked = Act(Did.NOTED, said("wake_after_sleep"), said("next_wakes_by_itself"))
    task = brought_to(member, State.DRAINING, phase=Phase.LEAVING, desired=Desired.RUN)
    assert wait_awake(task, asked, wait_s=0.05) == asked  # it goes on to fall asleep
    thread = later(task, state=State.SLEEPING, reason_code="wake_node_offline", reason_params={"node": "a"})
    act = wait_awake(task, asked, wait_s=60)
    thread.join()
    assert (act.why.code, act.next.code) == ("wake_node_offline", "next_wakes_by_itself")


@pytest.mark.req("SLEEP-02", "SVC-12")
@pytest.mark.django_db(transaction=True)
def test_a_service_that_is_deleted_while_its_wake_waits_is_not_found(member: User, settings: Any) -> None:
    settings.WAKE_POLL_S = 0.01
    task = brought_to(member, State.WAKING)

    def remove() -> None:
        TaskGroup.objects.filter(pk=task.group_id).delete()
        connection.close()

    thread = threading.Timer(0.1, remove)
    thread.start()
    with pytest.raises(NotFound):
        wait_awake(task, WAKES, wait_s=60)
    thread.join()


@pytest.mark.req("SLEEP-02")
@pytest.mark.django_db(transaction=True)
def test_a_wake_that_fails_answers_with_the_last_lines(
    api_client: Clients, member: User, settings: Any
) -> None:
    settings.WAKE_POLL_S, settings.WAKE_WAIT_S = 0.01, 60.0
    task = brought_to(member, State.SLEEPING)
    error = {**ERROR, "log_lines": ["no weights"]}
    thread = later(
        task, state=State.FAILED, reason_code="load_timeout", reason_params=ERROR["params"], last_error=error
    )
    answer = send(api_client(member), task, "wake")
    thread.join()
    told = answer.json()
    assert (answer.status_code, told["did"], told["code"]) == (200, "failed", "load_timeout")
    assert told["last_error"]["log_lines"] == ["no weights"] and told["next"]["code"] == "next_recovers"


@pytest.mark.req("SLEEP-02")
@pytest.mark.django_db(transaction=True)
def test_of_many_that_wait_a_few_hold_a_thread_and_the_others_hear_at_once(
    member: User, settings: Any
) -> None:
    settings.WAKE_POLL_S, settings.WAKE_WAITERS = 0.01, 2
    task = brought_to(member, State.WAKING)
    answered: list[Act] = []

    def wait() -> None:
        answered.append(wait_awake(Task.objects.get(pk=task.pk), WAKES, wait_s=60))
        connection.close()

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    done = threading.Event()
    for _ in range(3000):
        if len(answered) == 3:
            break
        done.wait(0.01)
    assert answered == [WAKES] * 3
    Task.objects.filter(pk=task.pk).update(state=State.RUNNING, phase=Phase.READY)
    for thread in threads:
        thread.join(timeout=60)
    assert [act.did for act in answered[3:]] == [Did.SERVING] * 2
    assert wait_awake(task, WAKES, wait_s=60).did == Did.SERVING  # the seats are free again
