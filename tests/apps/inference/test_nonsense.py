"""Random JSON at the addresses that take a body: refused or taken, never a server error."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from apps.tenants.models import Tenant, User
from tests import factories
from tests.apps.inference.bodies import body
from tests.apps.inference.conftest import URL
from tests.examples import examples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
TOP = [*list(body()), "labels", "scale_policy", "schedule_window", "priority", "task_type", "min_replicas"]
IN_TASK = ["image", "gpu_required", "ports", "env", "volumes", "command", "model_path", "engine", "name"]
RELAXED = settings(
    deadline=None,
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def client(db: None) -> APIClient:
    tenant: Tenant = factories.make_tenant()
    user: User = factories.make_member(tenant)
    client = APIClient(raise_request_exception=False)
    client.force_authenticate(user)
    return client


def send(client: APIClient, method: str, url: str, content: Any) -> None:
    answer = client.generic(method, url, json.dumps(content), content_type="application/json")
    assert answer.status_code < 500, answer.content
    if answer.status_code >= 400:
        assert answer.json()["code"]


@RELAXED
@given(content=JSON)
def test_any_json_as_the_whole_body(client: APIClient, content: Any) -> None:
    send(client, "POST", URL, content)


@RELAXED
@given(top=st.dictionaries(st.sampled_from(TOP), JSON, max_size=3))
def test_any_json_in_any_field(client: APIClient, top: dict[str, Any]) -> None:
    send(client, "POST", URL, body() | top)


@RELAXED
@given(task=st.dictionaries(st.sampled_from(IN_TASK), JSON, max_size=3))
def test_any_json_in_any_field_of_the_task(client: APIClient, task: dict[str, Any]) -> None:
    content = body()
    content["task"] |= task
    send(client, "POST", URL, content)


@RELAXED
@given(content=st.dictionaries(st.sampled_from(["weight", "priority", "version", "active", "name"]), JSON))
def test_any_json_to_a_route_and_an_endpoint(client: APIClient, content: dict[str, Any]) -> None:
    made = client.get(URL).json()["items"] or [client.post(URL, body(), format="json").json()]
    send(client, "PUT", f"/api/v1/model-routes/{made[0]['routes'][0]['id']}", content)
    send(client, "PUT", f"/api/v1/gateway/endpoints/{made[0]['endpoint']['id']}", content)
