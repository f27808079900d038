"""Engines outside of the cluster (GW-19): operators' alone, keys shown nowhere, public addresses only."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from rest_framework.test import APIClient

from apps.core import versions
from apps.core.errors import Invalid
from apps.core.models import AuditEntry
from apps.routing import published, services
from apps.routing.models import ExternalEngine, ModelRoute
from apps.tenants.models import Role, Tenant, User
from apps.tenants.scope import viewer_of
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("GW-19")]
Clients = Callable[..., APIClient]
ENGINES, ROUTES = "/api/v1/external-engines", "/api/v1/model-routes"
KEY = "sk-theirs-0123456789"
BODY = {"name": "far", "url": "https://93.184.216.34:8443/some/path/v1/", "engine_model": "m", "api_key": KEY}


@pytest.fixture
def client(api_client: Clients, operator: User) -> APIClient:
    return api_client(operator)


def answering(*addresses: str) -> Callable[..., list[Any]]:
    """A resolver that gives these for any name."""
    return lambda *_args, **_more: [(socket.AF_INET, 0, 0, "", (address, 443)) for address in addresses]


def test_an_engines_life_and_its_key_is_never_shown(client: APIClient, operator: User) -> None:
    answer = client.post(ENGINES, BODY)
    assert answer.status_code == 201
    made = answer.json()
    assert made["url"] == "https://93.184.216.34:8443/some/path"
    url = f"{ENGINES}/{made['id']}"
    assert client.get(url).json() == made
    assert client.get(ENGINES).json()["items"] == [made]
    with connection.cursor() as cursor:
        cursor.execute("SELECT api_key FROM routing_externalengine")
        assert KEY not in cursor.fetchone()[0]
    taken = client.post(ENGINES, BODY)
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    changed = client.put(url, {"name": "farther"})
    assert changed.json() == made | {"name": "farther"}
    assert ExternalEngine.objects.get().api_key == KEY
    client.put(url, {"api_key": "sk-other"})
    assert ExternalEngine.objects.get().api_key == "sk-other"
    client.put(url, {"api_key": ""})
    assert ExternalEngine.objects.get().api_key == ""
    for text in (answer.content, taken.content, changed.content):
        assert KEY.encode() not in text and b"sk-other" not in text
    assert KEY not in repr(list(AuditEntry.objects.values()))
    assert "sk-other" not in repr(list(AuditEntry.objects.values()))
    assert client.delete(url).status_code == 204
    assert client.get(url).status_code == 404


def test_only_operators_see_and_make_them(api_client: Clients, client: APIClient, tenant: Tenant) -> None:
    made = client.post(ENGINES, BODY).json()
    owner = api_client(factories.make_member(tenant, Role.OWNER))
    for method, url in (("get", ENGINES), ("post", ENGINES), ("get", f"{ENGINES}/{made['id']}")):
        assert getattr(owner, method)(url).status_code in (403, 404)
    assert owner.put(f"{ENGINES}/{made['id']}", {"name": "mine"}).status_code in (403, 404)
    assert owner.delete(f"{ENGINES}/{made['id']}").status_code in (403, 404)
    assert owner.post(ROUTES, {"external_id": made["id"], "model_name": "m"}).status_code == 404
    route = client.post(ROUTES, {"external_id": made["id"], "model_name": "m", "tenant": tenant.slug}).json()
    assert (route["group_id"], route["external"], route["tenant"]) == (None, "far", tenant.slug)
    # Those who see all of the tenant see the route; changing it is for operators.
    assert owner.get(f"{ROUTES}/{route['id']}").json() == route
    assert owner.put(f"{ROUTES}/{route['id']}", {"weight": 1}).status_code == 403
    assert owner.delete(f"{ROUTES}/{route['id']}").status_code == 403
    assert api_client(factories.make_member(tenant)).get(f"{ROUTES}/{route['id']}").status_code == 404
    assert client.put(f"{ROUTES}/{route['id']}", {"weight": 1}).json()["weight"] == 1
    before = versions.read()
    client.delete(f"{ENGINES}/{made['id']}")
    assert not ModelRoute.objects.exists() and versions.read() > before


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.com", "bad_engine_url"),
        ("http://93.184.216.34", "bad_engine_url"),
        ("https://", "bad_engine_url"),
        ("https://user:pass@example.com", "bad_engine_url"),
        ("https://example.com/?q=1", "bad_engine_url"),
        ("https://example.com:0", "bad_engine_url"),
        ("https://example.com:99999", "bad_engine_url"),
        ("https://exämple.com", "bad_engine_url"),
        ("https://a..example.com", "bad_engine_url"),
        ("https://127.0.0.1/v1", "private_engine"),
        ("https://10.0.0.8", "private_engine"),
        ("https://[::1]", "private_engine"),
        ("https://[::ffff:10.0.0.8]", "private_engine"),
        ("https://169.254.169.254", "private_engine"),
        ("", "blank"),
        ("https://example.com/\r\nx", "bad_characters"),
    ],
)
def test_addresses_that_are_refused(client: APIClient, url: str, code: str) -> None:
    answer = client.post(ENGINES, BODY | {"url": url})
    assert answer.status_code == 400
    assert ("url", code) in [(error["field"], error["code"]) for error in answer.json()["errors"]]
    assert not ExternalEngine.objects.exists()


@pytest.mark.parametrize(
    ("found", "code"), [(["93.184.216.34", "10.1.2.3"], "private_engine"), (None, "engine_unresolved")]
)
def test_a_name_is_judged_by_every_address_of_it(operator: User, found: list[str] | None, code: str) -> None:
    def unknown(*_args: Any, **_more: Any) -> list[Any]:
        raise OSError("no such name")

    with pytest.raises(Invalid) as refused:
        services.create_external_engine(
            actor=viewer_of(operator),
            body=BODY | {"url": "https://inner.example"},
            resolve=unknown if found is None else answering(*found),
        )
    assert [error.code for error in refused.value.errors] == [code]


def test_settings_allow_what_is_near_and_plain(client: APIClient, settings: Any) -> None:
    settings.EXTERNAL_ENGINES_ALLOW_PRIVATE = settings.EXTERNAL_ENGINES_ALLOW_HTTP = True
    assert (
        client.post(ENGINES, BODY | {"url": "http://10.0.0.8:8000/v1"}).json()["url"]
        == "http://10.0.0.8:8000"
    )


@pytest.mark.req("GW-08")
@pytest.mark.parametrize(
    ("change", "revision"),
    [
        ({"name": "farther"}, 1),
        ({"url": BODY["url"], "engine_model": "m"}, 1),  # as it was
        ({"url": "https://93.184.216.35:8443/some/path"}, 2),
        ({"engine_model": "n"}, 2),
        ({"api_key": "sk-other"}, 2),
    ],
)
def test_another_address_model_or_key_is_another_backend(
    client: APIClient, tenant: Tenant, change: dict[str, str], revision: int
) -> None:
    made = client.post(ENGINES, BODY).json()
    client.post(ROUTES, {"external_id": made["id"], "model_name": "m", "tenant": tenant.slug})
    assert client.put(f"{ENGINES}/{made['id']}", change).status_code == 200
    ((replica,),) = (route.replicas for route in published.load_table().routes[tenant.public_id]["m"])
    assert replica.attempt == revision


def test_it_is_published_as_a_backend(client: APIClient, tenant: Tenant) -> None:
    made = client.post(ENGINES, BODY).json()
    client.post(ROUTES, {"external_id": made["id"], "model_name": "m", "tenant": tenant.slug})
    (route,) = published.load_table().routes[tenant.public_id]["m"]
    (replica,) = route.replicas
    assert (route.group_id, replica.task_id, replica.attempt) == ("", made["id"], 1)
    assert (replica.host, replica.port, replica.tls) == ("93.184.216.34", 8443, True)
    assert (replica.path_prefix, replica.served_model_name, replica.engine_key) == ("/some/path", "m", KEY)
    assert (replica.external, replica.private_ok, replica.door) == (True, False, None)


def test_a_key_that_nothing_opens_leaves_out_its_engine_alone(client: APIClient, tenant: Tenant) -> None:
    made = client.post(ENGINES, BODY).json()
    other = client.post(ENGINES, BODY | {"name": "other", "api_key": ""}).json()
    for engine in (made, other):
        client.post(ROUTES, {"external_id": engine["id"], "model_name": "m", "tenant": tenant.slug})
    with connection.cursor() as cursor:
        cursor.execute("UPDATE routing_externalengine SET api_key = 'unreadable' WHERE name = 'far'")
    routes = published.load_table().routes[tenant.public_id]["m"]
    assert [[one.task_id for one in route.replicas] for route in routes] == [[], [other["id"]]]
    assert client.get(ENGINES).status_code == 200
    assert client.put(f"{ENGINES}/{made['id']}", {"api_key": "sk-new"}).status_code == 200
    assert client.get(ROUTES).json()["total"] == 2
