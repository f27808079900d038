"""The fault timeline where people see it; nodes out of sight go without their name (LIFE-06)."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from agent.contract.codes import Code
from apps.inference.api import shapes
from apps.tenants.models import Tenant, User
from apps.workloads.models import Event, Task, TaskGroup
from tests import factories
from tests.apps.inference.conftest import URL
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("LIFE-06")]


@pytest.fixture
def shaken(tenant: Tenant, member: User) -> TaskGroup:
    """It lost a node that its people do not see, serves again, and failed a minute later."""
    factories.make_node("secret-node", allowed_tenants=[factories.make_tenant()])
    group = factories.make_group(tenant, member)
    task = factories.make_task(group)
    note(task, 0, "running", "pending", Code.NODE_LOST, node="secret-node", silent_s=31)
    note(task, 70, "scheduling", "running", Code.READY)
    note(task, 130, "running", "failed", Code.EXITED, exit_code=3)
    return group


def note(task: Task, second: int, from_: str, to: str, code: str, **params: Any) -> None:
    at = NOW + timedelta(seconds=second)
    moved = {"from_state": from_, "to_state": to, "code": code, "params": params}
    Event.objects.create(group=task.group, task=task, attempt=1, actor="x", at=at, **moved)


def test_the_api_tells_cause_action_and_duration(client_of_member: APIClient, shaken: TaskGroup) -> None:
    answer = client_of_member.get(f"{URL}/{shaken.public_id}/faults").json()
    assert answer["total"] == 2
    last, first = answer["items"]
    assert set(first) == set(shapes.FaultShape().fields)
    assert first["cause"]["text"] == "Node - has been silent for 31 s."
    assert (first["action"]["code"], first["duration_s"], first["outcome"]) == (
        "fault_moved",
        70.0,
        "serving",
    )
    assert last["cause"]["text"] == "It ended by itself with exit code 3."
    assert (last["action"], last["until"], last["duration_s"], last["outcome"]) == (None, None, None, "open")


def test_an_operator_is_told_the_node(api_client: Any, operator: User, shaken: TaskGroup) -> None:
    answer = api_client(operator).get(f"{URL}/{shaken.public_id}/faults").json()
    assert answer["items"][1]["cause"]["params"]["node"] == "secret-node"


def test_the_pages_show_it(member: User, operator: User, shaken: TaskGroup) -> None:
    client = Client()
    client.force_login(member)
    text = client.get(reverse("portal:service", args=[shaken.public_id])).content.decode()
    assert "serves again" in text and "after 1 min 10 s" in text and "secret-node" not in text
    client.force_login(operator)
    text = client.get(reverse("admin:workloads_taskgroup_change", args=[shaken.pk])).content.decode()
    assert "serves again" in text and "Moved to another place." in text and "secret-node" in text


def test_a_service_without_faults_says_so(member: User, tenant: Tenant) -> None:
    client = Client()
    client.force_login(member)
    group = factories.make_group(tenant, member)
    text = client.get(reverse("portal:service", args=[group.public_id])).content.decode()
    assert "No fault so far." in text
