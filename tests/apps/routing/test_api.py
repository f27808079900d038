"""Changing routes (GW-16) and endpoints (SVC-07, SVC-16) over the API."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from agent.contract.states import State
from apps.core import versions
from apps.core.models import AuditEntry
from apps.core.secrets import sha256_hex
from apps.fleet.models import Port
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.routing.services import create_endpoint, create_route
from apps.tenants.models import ApiKey, Role, Tenant, User
from apps.tenants.scope import viewer_of
from apps.workloads.models import Task
from tests import factories
from tests.factories import NOW

pytestmark = pytest.mark.django_db
Clients = Callable[..., APIClient]
ROUTES, ENDPOINTS = "/api/v1/model-routes", "/api/v1/gateway/endpoints"


@pytest.fixture
def route(tenant: Tenant, member: User) -> ModelRoute:
    group = factories.make_group(tenant, member, model_name="tiny")
    factories.make_task(group)
    return create_route(group=group, model_name="tiny")


@pytest.fixture
def endpoint(tenant: Tenant, member: User) -> InferenceEndpoint:
    group = factories.make_group(tenant, member)
    factories.make_task(group, ports=[{"container_port": 8000, "host_port": 8001}])
    return create_endpoint(actor=viewer_of(member), group=group, name="tiny-end", port=8000, now=NOW)[0]


@pytest.fixture
def client(api_client: Clients, member: User) -> APIClient:
    return api_client(member)


# --- routes ---------------------------------------------------------------------------------------


@pytest.mark.req("GW-16")
def test_a_route_is_changed_where_something_is_sent(client: APIClient, route: ModelRoute) -> None:
    before = versions.read()
    answer = client.put(f"{ROUTES}/{route.public_id}", {"weight": 0, "version": "canary"})
    assert answer.status_code == 200
    assert answer.json() == {
        "id": route.public_id,
        "model_name": "tiny",
        "engine": "llamacpp",
        "version": "canary",
        "priority": 0,
        "weight": 0,
        "balancing": "least_connections",
        "sticky": "",
        "active": True,
        "group_id": route.group.public_id,
        "external": None,
        "tenant": route.tenant.slug,
        "warnings": [],
    }
    assert versions.read() > before
    changes = {"priority": 2, "balancing": "engine_aware", "sticky": "user", "active": False}
    answer = client.put(f"{ROUTES}/{route.public_id}", changes).json()
    assert {name: answer[name] for name in changes} == changes
    assert answer["weight"] == 0
    assert client.get(f"{ROUTES}/{route.public_id}").json() == answer
    assert client.get(ROUTES).json()["items"] == [answer]
    assert client.put(f"{ROUTES}/{route.public_id}", {"sticky": ""}).json()["sticky"] == ""


@pytest.mark.req("GW-16", "SVC-08")
@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"weight": -1}, "weight", "out_of_range"),
        ({"weight": 101}, "weight", "out_of_range"),
        ({"weight": "50"}, "weight", "wrong_type"),
        ({"weight": True}, "weight", "wrong_type"),
        ({"priority": -1}, "priority", "operators_only"),
        ({"priority": 10**12}, "priority", "out_of_range"),
        ({"balancing": "engine"}, "balancing", "not_a_choice"),
        ({"sticky": "cookie"}, "sticky", "not_a_choice"),
        ({"version": ""}, "version", "blank"),
        ({"version": "x" * 51}, "version", "too_long"),
        ({"active": "yes"}, "active", "wrong_type"),
        ({"model_name": "other"}, "model_name", "unknown_field"),
        ({"group": "tg-x"}, "group", "unknown_field"),
    ],
)
def test_what_a_route_refuses(
    client: APIClient, route: ModelRoute, body: dict[str, Any], field: str, code: str
) -> None:
    before = versions.read()
    answer = client.put(f"{ROUTES}/{route.public_id}", body | {"weight": body.get("weight", 7)})
    assert answer.status_code == 400
    assert [(e["field"], e["code"]) for e in answer.json()["errors"]] == [(field, code)]
    route.refresh_from_db()
    assert (route.weight, versions.read()) == (100, before)


@pytest.mark.req("GW-16", "GW-03")
def test_a_canary_is_one_more_route_and_goes_again(
    client: APIClient, route: ModelRoute, member: User, tenant: Tenant
) -> None:
    other = factories.make_group(tenant, member, model_name="tiny-2")
    before = versions.read()
    body = {"group_id": other.public_id, "model_name": "tiny", "version": "v2", "weight": 5, "sticky": "key"}
    answer = client.post(ROUTES, body)
    assert answer.status_code == 201
    made = answer.json()
    assert {name: made[name] for name in body} == body
    assert versions.read() > before
    again = client.post(ROUTES, body)
    assert (again.status_code, again.json()["code"]) == (409, "route_exists")
    assert client.post(ROUTES, {"group_id": other.public_id}).json()["model_name"] == "tiny-2"
    before = versions.read()
    assert client.delete(f"{ROUTES}/{made['id']}").status_code == 204
    assert client.delete(f"{ROUTES}/{made['id']}").status_code == 404
    assert versions.read() > before
    assert ModelRoute.objects.filter(model_name="tiny").get() == route
    verbs = list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == ["create_route", "create_route", "delete_route"]


@pytest.mark.req("GW-16", "TEN-04")
def test_a_route_leads_to_one_group_that_its_maker_manages(
    client: APIClient, api_client: Clients, route: ModelRoute, tenant: Tenant
) -> None:
    own, group_id = route.group, factories.make_group().public_id
    assert own is not None
    for body, status, field in (
        ({}, 400, "group_id"),
        ({"model_name": "m"}, 400, "group_id"),
        (
            {"group_id": own.public_id, "external_id": "ext-aaaaaaaaaaaaaaaa", "model_name": "m"},
            400,
            "group_id",
        ),
        ({"group_id": own.public_id, "weight": 101}, 400, "weight"),
        ({"group_id": group_id}, 404, "group_id"),
        ({"group_id": "tg-\0"}, 400, "group_id"),
        ({"group_id": own.public_id, "tenant": "another", "model_name": "m"}, 400, "tenant"),
        ({"external_id": "ext-aaaaaaaaaaaaaaaa", "model_name": "m"}, 404, "external_id"),
    ):
        answer = client.post(ROUTES, body)
        assert answer.status_code == status, body
        assert field in {error["field"] for error in answer.json()["errors"]}, body
    reader = factories.make_member(tenant, Role.VIEWER)
    assert api_client(reader).post(ROUTES, {"group_id": own.public_id, "model_name": "m"}).status_code == 403
    assert api_client(reader).delete(f"{ROUTES}/{route.public_id}").status_code == 403
    assert ModelRoute.objects.get() == route


@pytest.mark.req("GW-03")
def test_what_runs_without_a_port_is_a_warning(client: APIClient, route: ModelRoute) -> None:
    Task.objects.update(state=State.RUNNING, name="tiny-0", ports=[])
    (warning,) = client.get(f"{ROUTES}/{route.public_id}").json()["warnings"]
    assert "tiny-0" in warning and "task.ports" in warning
    assert route.group is not None
    shown = client.get(f"/api/v1/task-groups/{route.group.public_id}").json()
    assert "task_without_port" in [warning["code"] for warning in shown["warnings"]]
    Task.objects.update(ports=[{"container_port": 8000}])
    assert client.get(f"{ROUTES}/{route.public_id}").json()["warnings"] == []


@pytest.mark.req("SVC-08")
def test_operators_may_go_below_priority_zero(api_client: Clients, operator: User, route: ModelRoute) -> None:
    answer = api_client(operator).put(f"{ROUTES}/{route.public_id}", {"priority": -1})
    assert answer.json()["priority"] == -1


@pytest.mark.req("TEN-02", "TEN-04")
@pytest.mark.parametrize("what", ["route", "endpoint"])
def test_strangers_find_nothing_and_viewers_change_nothing(
    api_client: Clients, tenant: Tenant, what: str, request: pytest.FixtureRequest
) -> None:
    row = request.getfixturevalue(what)
    url = f"{ROUTES if what == 'route' else ENDPOINTS}/{row.public_id}"
    stranger, colleague = factories.make_member(), factories.make_member(tenant)
    reader = factories.make_member(tenant, Role.VIEWER)
    for user in (stranger, colleague):
        assert api_client(user).get(url).status_code == 404
        assert api_client(user).put(url, {}).status_code == 404
        assert api_client(user).get(url.rsplit("/", 1)[0]).json()["total"] == 0
    assert api_client(stranger).delete(f"{ENDPOINTS}/{row.public_id}").status_code == 404
    assert api_client(reader).get(url).status_code == 200
    assert api_client(reader).put(url, {}).status_code == 403
    assert api_client().get(url).status_code == 401
    assert api_client(factories.make_member(tenant, Role.ADMIN)).put(url, {}).status_code == 200


# --- endpoints ------------------------------------------------------------------------------------


@pytest.mark.req("SVC-16", "TEN-06")
def test_the_list_shows_the_prefix_only(client: APIClient, endpoint: InferenceEndpoint) -> None:
    (shown,) = client.get(ENDPOINTS).json()["items"]
    key = ApiKey.objects.get()
    assert (shown["id"], shown["key_prefix"]) == (endpoint.public_id, key.prefix)
    assert key.sha256 not in repr(shown)
    assert "api_key" not in shown


@pytest.mark.req("SVC-16", "TEN-06")
@pytest.mark.parametrize("body", [{}, {"name": "n"}, {"rotate_key": False}, {"rotate_key": None}])
def test_no_key_is_issued_unless_rotation_is_asked_for(
    client: APIClient, endpoint: InferenceEndpoint, body: dict[str, Any]
) -> None:
    before = ApiKey.objects.get().sha256
    answer = client.put(f"{ENDPOINTS}/{endpoint.public_id}", body)
    assert answer.status_code == 200
    assert "api_key" not in answer.json()
    assert ApiKey.objects.get().sha256 == before


@pytest.mark.req("SVC-16", "TEN-06")
def test_rotation_shows_the_new_key_once(client: APIClient, endpoint: InferenceEndpoint) -> None:
    before = ApiKey.objects.get()
    answer = client.put(f"{ENDPOINTS}/{endpoint.public_id}", {"rotate_key": True})
    plain = answer.json()["api_key"]
    after = ApiKey.objects.get()
    assert after.pk == before.pk
    assert after.sha256 == sha256_hex(plain) != before.sha256
    assert answer.json()["key_prefix"] == after.prefix
    assert answer["Cache-Control"] == "no-store"
    assert plain not in client.get(f"{ENDPOINTS}/{endpoint.public_id}").content.decode()


@pytest.mark.req("SVC-16")
def test_rotation_after_a_revocation_issues_a_fresh_key(
    client: APIClient, endpoint: InferenceEndpoint
) -> None:
    ApiKey.objects.update(revoked_at=NOW)
    plain = client.put(f"{ENDPOINTS}/{endpoint.public_id}", {"rotate_key": True}).json()["api_key"]
    fresh = ApiKey.objects.get(sha256=sha256_hex(plain))
    assert fresh.revoked_at is None
    endpoint.refresh_from_db()
    assert endpoint.api_key == fresh


@pytest.mark.req("SVC-07")
def test_an_endpoints_name_is_unique_in_its_tenant(
    client: APIClient, endpoint: InferenceEndpoint, member: User
) -> None:
    group = factories.make_group(endpoint.tenant, member)
    create_endpoint(actor=viewer_of(member), group=group, name="taken", port=1, now=NOW)
    answer = client.put(f"{ENDPOINTS}/{endpoint.public_id}", {"name": "taken", "rotate_key": True})
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert answer.json()["errors"][0]["field"] == "name"
    endpoint.refresh_from_db()
    assert endpoint.name == "tiny-end"
    assert client.put(f"{ENDPOINTS}/{endpoint.public_id}", {"name": "tiny-end"}).status_code == 200


@pytest.mark.req("SVC-07")
@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"port": 9000}, "port", "port_not_declared"),
        ({"port": 0}, "port", "out_of_range"),
        ({"port": 65536}, "port", "out_of_range"),
        ({"port": "8000"}, "port", "wrong_type"),
        ({"external_port": -1}, "external_port", "out_of_range"),
        ({"external_port": 65536}, "external_port", "out_of_range"),
        ({"name": ""}, "name", "blank"),
        ({"name": "a\nb"}, "name", "bad_characters"),
        ({"rotate_key": 1}, "rotate_key", "wrong_type"),
        ({"api_key": "sk-mine"}, "api_key", "unknown_field"),
    ],
)
def test_what_an_endpoint_refuses(
    client: APIClient, endpoint: InferenceEndpoint, body: dict[str, Any], field: str, code: str
) -> None:
    answer = client.put(f"{ENDPOINTS}/{endpoint.public_id}", body)
    assert answer.status_code == 400
    assert [(e["field"], e["code"]) for e in answer.json()["errors"]] == [(field, code)]


@pytest.mark.req("SVC-07")
def test_declared_and_mapped_ports_pass_and_operators_set_any(
    client: APIClient, api_client: Clients, operator: User, endpoint: InferenceEndpoint
) -> None:
    task = endpoint.group.tasks.get()
    node = factories.make_node()
    Port.objects.create(node=node, number=20500, owner=task.public_id, attempt=1, container_port=8000)
    url = f"{ENDPOINTS}/{endpoint.public_id}"
    for port in (8000, 8001, 20500):
        assert client.put(url, {"port": port}).json()["port"] == port
    assert client.put(url, {"external_port": 65535}).json()["external_port"] == 65535
    assert api_client(operator).put(url, {"port": 9000}).json()["port"] == 9000


@pytest.mark.req("SVC-16")
def test_deleting_an_endpoint_ends_its_key_and_leaves_the_group(
    client: APIClient, endpoint: InferenceEndpoint
) -> None:
    before = versions.read()
    assert client.delete(f"{ENDPOINTS}/{endpoint.public_id}").status_code == 204
    assert client.delete(f"{ENDPOINTS}/{endpoint.public_id}").status_code == 404
    assert ApiKey.objects.get().revoked_at is not None
    assert versions.read() > before
    shown = client.get(f"/api/v1/task-groups/{endpoint.group.public_id}").json()
    assert shown["endpoint"] is None
