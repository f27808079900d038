"""The route test: every route with its reason, one's own alone, nothing is called; the table of backends."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from agent.contract.states import Phase, State
from apps.core.clock import utc_now
from apps.fleet.models import Port
from apps.routing import gateways
from apps.routing.load import BackendWord, Load, TenantWord
from apps.routing.models import ExternalEngine, ModelRoute
from apps.tenants.models import Role, Tenant, TenantStatus, User
from apps.workloads.models import Task, TaskGroup
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("GW-03", "GW-16")]
Clients = Callable[..., APIClient]
URL = "/api/v1/model-routes/test"


@pytest.fixture(autouse=True)
def patient(settings: Any) -> None:
    """However busy the machine is, what was said a moment ago counts."""
    settings.LOAD_FRESH_S = 600.0


def serving(tenant: Tenant, member: User, number: int, **fields: Any) -> tuple[ModelRoute, Task]:
    now = utc_now()
    group: TaskGroup = factories.make_group(
        tenant, member, name=f"chat-{number}", state=State.RUNNING, model_name="tiny"
    )
    direct = {"kind": "direct", "host": "127.0.0.1"}
    node = factories.make_node(dial=direct, now=now, last_seen_at=now + timedelta(hours=1))
    task = factories.make_task(group, node=node, state=State.RUNNING, attempt=1, phase=Phase.READY)
    Port.objects.create(
        node=node, number=20000 + number, owner=task.public_id, attempt=1, container_port=8000
    )
    return ModelRoute.objects.create(tenant=tenant, group=group, model_name="tiny", **fields), task


def test_every_route_with_its_reason(api_client: Clients, tenant: Tenant, member: User) -> None:
    good, task = serving(tenant, member, 1)
    failing, other = serving(tenant, member, 2)
    off, _ = serving(tenant, member, 3, active=False)
    word = BackendWord(state="open", failures=3, last_failure="refused", running=2, waiting=0, told_at=5.0)
    load = Load(in_flight={task.public_id: 2}, backends={other.public_id: word})
    gateways.say("host:1", load, utc_now())
    gateways.say("host:2", load, utc_now() - timedelta(hours=1))  # it may be dead
    answer = api_client(member).get(URL, {"model": "tiny"})
    assert answer.status_code == 200
    told = answer.json()
    assert (told["gateways"], told["refusal"], told["others"]) == (1, None, 0)
    routes = {route["id"]: route for route in told["routes"]}
    assert {id: (r["percent"], r["reason"]["code"]) for id, r in routes.items()} == {
        good.public_id: (100.0, "route_gets"),
        failing.public_id: (0.0, "route_gets_none"),
        off.public_id: (0.0, "route_off"),
    }
    (replica,) = routes[failing.public_id]["replicas"]
    assert [one["code"] for one in replica["standings"]] == ["standing_open"]
    assert (replica["failures"], replica["last_failure"], replica["kv_use"]) == (3, "refused", None)
    assert routes[good.public_id]["replicas"][0]["in_flight"] == 2


@pytest.mark.req("GW-19", "TEN-04")
def test_of_a_shared_engine_only_what_ones_own_calls_have_met(
    api_client: Clients, tenant: Tenant, operator: User
) -> None:
    engine = ExternalEngine.objects.create(name="far", url="https://far.example")
    other = factories.make_tenant()
    for one in (tenant, other):
        ModelRoute.objects.create(tenant=one, external=engine, model_name="tiny")
    met = {other.public_id: TenantWord("open", 7, "refused")}
    word = BackendWord(state="open", failures=7, last_failure="refused", tenants=met)
    load = Load(in_flight={engine.public_id: 2}, backends={engine.public_id: word})
    gateways.say("host:1", load, utc_now())

    def replica(user: User, of: Tenant) -> dict[str, Any]:
        answer = api_client(user).get(URL, {"model": "tiny", "tenant": of.slug}).json()
        found: dict[str, Any] = answer["routes"][0]["replicas"][0]
        return found

    owner = factories.make_member(tenant, Role.OWNER)
    names = ("percent", "failures", "last_failure", "in_flight")
    mine, theirs = replica(owner, tenant), replica(operator, other)
    assert [mine[name] for name in names] == [100.0, 0, "", None]
    assert [theirs[name] for name in names] == [0.0, 7, "refused", 2]


def test_what_the_caller_would_be_told_instead(api_client: Clients, tenant: Tenant, member: User) -> None:
    client = api_client(member)

    def refused(**asked: str) -> tuple[int, str] | None:
        found = client.get(URL, {"model": "tiny", **asked}).json()["refusal"]
        return found and (found["status"], found["code"])

    assert refused() == (404, "model_not_found")
    _, task = serving(tenant, member, 1)
    assert refused() is None
    plain, _ = factories.make_key(tenant, member)
    tester, _ = factories.make_key(tenant, member, scopes=["inference", "pin"])
    lister, _ = factories.make_key(tenant, member, scopes=["models"])
    picky, _ = factories.make_key(tenant, member, allowed_models=["other"])
    ended, _ = factories.make_key(tenant, member, revoked_at=utc_now())
    pin = {"backend": task.public_id}
    assert refused(**pin) is None
    assert refused(key=plain.public_id) is None
    assert refused(key=plain.public_id, **pin) == (403, "pin_not_allowed")
    assert refused(key=tester.public_id, **pin) is None
    assert refused(key=lister.public_id) == (403, "scope_missing")
    assert refused(key=picky.public_id) == (404, "model_not_found")
    assert refused(key=ended.public_id) == (401, "invalid_api_key")
    assert refused(key=plain.public_id, model="none", **pin) == (
        404,
        "model_not_found",
    )  # the gateway's order
    Task.objects.filter(pk=task.pk).update(phase=Phase.LOADING)
    assert refused() == (503, "no_backend")
    Tenant.objects.filter(pk=tenant.pk).update(status=TenantStatus.SUSPENDED, suspended_reason="unpaid")
    assert refused() == (403, "tenant_suspended")
    assert client.get(URL, {}).status_code == 400


@pytest.mark.req("TEN-06")
def test_where_a_call_comes_from_is_judged_and_explained(
    api_client: Clients, tenant: Tenant, member: User
) -> None:
    serving(tenant, member, 1)
    limited, _ = factories.make_key(tenant, member, allowed_addresses=["10.0.0.0/8", "2001:db8::/32"])
    free, _ = factories.make_key(tenant, member)

    def told(**asked: str) -> tuple[str | None, str | None, str]:
        answer = api_client(member).get(URL, {"model": "tiny", **asked})
        assert answer.status_code == 200
        refusal, address = answer.json()["refusal"], answer.json()["address"]
        return refusal and refusal["code"], address and address["code"], address["text"] if address else ""

    assert told(address="10.1.2.3") == (None, None, "")
    assert told(key=free.public_id, address="192.0.2.1")[:2] == (None, "address_any")
    refused, code, text = told(key=limited.public_id, address="192.0.2.1")
    assert (refused, code) == ("address_not_allowed", "address_outside")
    assert "192.0.2.1" in text and "10.0.0.0/8, 2001:db8::/32" in text
    for address, network in (("10.1.2.3", "10.0.0.0/8"), ("::ffff:10.1.2.3", "10.0.0.0/8")):
        refused, code, text = told(key=limited.public_id, address=address)
        assert (refused, code) == (None, "address_within") and network in text and "2001" not in text
    assert told(key=limited.public_id)[:2] == (None, "address_not_judged")
    wrong = api_client(member).get(URL, {"model": "tiny", "address": "10.0.0.0/8"})
    assert wrong.status_code == 400 and wrong.json()["errors"][0]["field"] == "address"


@pytest.mark.req("TEN-02", "TEN-04")
def test_ones_own_alone(api_client: Clients, tenant: Tenant, member: User) -> None:
    mine, _ = serving(tenant, member, 1)
    colleague = factories.make_member(tenant)
    theirs, task = serving(tenant, colleague, 2)
    key, _ = factories.make_key(tenant, colleague)

    def told(user: User, **asked: str) -> Any:
        return api_client(user).get(URL, {"model": "tiny", **asked})

    found = told(member).json()
    assert [route["id"] for route in found["routes"]] == [mine.public_id]
    assert found["others"] == 1 and 0 < found["others_percent"] < 100
    assert theirs.public_id not in str(found) and task.public_id not in str(found)
    everything = told(factories.make_member(tenant, Role.VIEWER)).json()
    assert {route["id"] for route in everything["routes"]} == {mine.public_id, theirs.public_id}
    stranger = factories.make_member()
    assert told(stranger, tenant=tenant.slug).status_code == 404
    assert told(stranger).json()["refusal"]["code"] == "model_not_found"
    hidden = told(member, key=key.public_id)
    (error,) = hidden.json()["errors"]
    assert (hidden.status_code, error["field"], error["value"]) == (404, "key", key.public_id)
    own, _ = factories.make_key(factories.make_tenant(), member)
    far = told(factories.make_operator(), tenant=tenant.slug, key=own.public_id)
    assert (far.status_code, far.json()["errors"][0]["code"]) == (400, "of_another_tenant")
    assert api_client().get(URL, {"model": "tiny"}).status_code == 401


def test_the_console_tests_routes_and_shows_backends(tenant: Tenant, member: User) -> None:
    client = Client()
    client.force_login(factories.make_operator())
    backends, tester = (
        reverse("admin:routing_gatewayload_backends"),
        reverse("admin:routing_modelroute_test"),
    )
    assert "No replica runs that a route leads to." in client.get(backends).content.decode()
    assert "No gateway was heard lately" in client.get(backends).content.decode()
    route, task = serving(tenant, member, 1)
    engine = {"running": 2, "waiting": 1, "kv_use": 0.25, "told_at": 5.0}
    word = BackendWord(state="passed_over", failures=3, last_failure="timeout", **engine)
    load = Load(in_flight={task.public_id: 7}, backends={task.public_id: word})
    gateways.say("host:1", load, utc_now())
    (row,) = client.get(backends).context["backends"]["rows"]
    assert (row["in_flight"], row["failures"], row["kv_percent"], row["temperature_c"]) == (7, 3, 25, None)
    text = client.get(backends).content.decode()
    assert (
        "passed over while others can serve" in text and "did not answer in time" in text and "25 %" in text
    )
    asked = {"tenant": tenant.pk, "model": "tiny"}
    text = client.get(tester, asked).content.decode()
    assert route.public_id in text and "100.0 %" in text and "has failed lately" in text
    assert "Failures: 3 · did not answer in time" in text
    assert text.index(route.public_id) < text.index('name="address"')  # what is found stands above the form
    assert "no route of that model" in client.get(tester, {**asked, "model": "none"}).content.decode()
    assert client.get(tester).status_code == 200
    key, _ = factories.make_key(tenant, member, allowed_addresses=["10.0.0.0/8"])
    as_called = {**asked, "key": key.public_id, "address": "192.0.2.1"}
    text = client.get(tester, as_called).content.decode()
    assert "403 address_not_allowed" in text and "192.0.2.1 lies in none of 10.0.0.0/8" in text
    assert (
        "10.1.1.1 lies in 10.0.0.0/8"
        in client.get(tester, as_called | {"address": "10.1.1.1"}).content.decode()
    )
    foreign, _ = factories.make_key()
    assert (
        "no key with this id" in client.get(tester, as_called | {"key": foreign.public_id}).content.decode()
    )
    staff = Client()
    staff.force_login(factories.make_user(is_staff=True))
    assert {staff.get(page).status_code for page in (backends, tester)} == {403}


@pytest.mark.req("GW-19", "TEN-08")
def test_routes_are_made_and_removed_in_the_console(tenant: Tenant, member: User) -> None:
    client = Client()
    client.force_login(factories.make_operator())
    group = factories.make_group(tenant, member, name="second", model_name="second")
    new = reverse("admin:routing_modelroute_new")
    assert client.get(new).status_code == 200
    form = {"group": group.pk, "model_name": "tiny", "priority": 1, "weight": 0, "version": "v2"}
    client.post(new, form)
    route = ModelRoute.objects.get()
    assert (route.model_name, route.group, route.weight, route.version) == ("tiny", group, 0, "v2")
    twice = client.post(new, form, follow=True).content.decode()
    assert ModelRoute.objects.count() == 1 and "tiny" in twice
    nameless = client.post(new, {**form, "model_name": "", "group": ""}, follow=True).content.decode()
    assert "Model name is required." in nameless and "model_name is required" not in nameless
    remove = reverse("admin:routing_modelroute_remove", args=[route.pk])
    assert client.get(remove).status_code == 200
    client.post(remove)
    assert not ModelRoute.objects.exists()
