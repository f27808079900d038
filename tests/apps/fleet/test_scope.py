"""Which nodes a tenant may use and see, and the plain rows that placing reads."""

import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.core.errors import Forbidden
from apps.fleet import selectors, services
from apps.fleet.models import Node, Port
from apps.tenants.models import Role
from apps.tenants.scope import SYSTEM, viewer_of
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-09")]


@pytest.fixture
def fleet(tenant):
    """Nodes open to all, to `tenant` by name, by two groups at once, to somebody else, to nobody."""
    friends = factories.make_shared_group(tenant, factories.make_tenant())
    others = factories.make_shared_group(tenant)
    return {
        "all": factories.make_node("all"),
        "named": factories.make_node("named", allowed_tenants=[tenant]),
        "grouped": factories.make_node("grouped", allowed_groups=[friends, others]),
        "foreign": factories.make_node("foreign", allowed_tenants=[factories.make_tenant()]),
        "shut": factories.make_node("shut", open_to_all=False),
    }


def test_a_tenant_uses_open_and_listed_nodes_each_once(fleet, tenant):
    assert sorted(n.name for n in selectors.nodes_open_to(tenant.pk)) == ["all", "grouped", "named"]
    assert not selectors.nodes_open_to()


def test_people_see_what_their_tenants_may_use(fleet, member, operator):
    assert sorted(n.name for n in selectors.nodes(viewer_of(member))) == ["all", "grouped", "named"]
    assert selectors.nodes(viewer_of(operator)).count() == 5
    assert not selectors.nodes(viewer_of(factories.make_user())).exists()


def test_placing_reads_the_same_scope(fleet, tenant):
    rows = selectors.placement_rows()
    assert [row.name for row in rows] == sorted(fleet)
    assert {row.name for row in rows if row.open_to is None or tenant.pk in row.open_to} == {
        "all",
        "grouped",
        "named",
    }


def test_placing_reads_plain_values_in_a_fixed_number_of_statements(tenant, now):
    def read():
        with CaptureQueriesContext(connection) as seen:
            rows = selectors.placement_rows()
        return rows, len(seen)

    _, empty = read()
    for number in range(5):
        factories.make_node(cards=4, allowed_tenants=[tenant] if number % 2 else [])
    node = factories.make_node(
        "zz",
        cards=[{}, {"vram_total_mb": None, "present": False}],
        sample=False,
        cordoned=True,
        last_seen_at=None,
    )
    factories.make_card(node, 2, sample={"vram_used_mb": 77})
    Port.objects.create(node=node, number=20001, owner="task-a", attempt=1, container_port=8000)
    rows, queries = read()

    assert queries == empty
    row = rows[-1]
    assert (row.id, row.public_id, row.cordoned) == (node.pk, node.public_id, True)
    assert row.engines == {"llamacpp", "vllm"} and row.ports == {20001}
    assert row.last_seen_at is None and rows[0].last_seen_at == now
    assert [(c.index, c.vram_total_mb, c.vram_used_mb, c.present) for c in row.cards] == [
        (0, 24576, None, True),
        (1, None, None, False),
        (2, 24576, 77, True),
    ]


def test_operators_cordon_label_and_list_by_address(api_client, operator, tenant, fleet):
    client = api_client(operator)
    path = f"/api/v1/nodes/{fleet['all'].public_id}"
    group = factories.make_shared_group(tenant, name="friends")
    body = {
        "cordoned": True,
        "pool": "a100",
        "labels": {"rack": "7"},
        "open_to_all": False,
        "inference_cap": 0,
        "allowed_tenants": [tenant.slug, tenant.slug],
        "allowed_groups": [group.name],
    }
    answer = client.patch(path, body)
    assert answer.status_code == 200, answer.content
    shown = answer.json()
    assert {name: shown[name] for name in body} == {**body, "allowed_tenants": [tenant.slug]}
    assert client.patch(path, {"allowed_tenants": [], "cordoned": False}).json()["allowed_tenants"] == []
    assert client.get(path).json()["allowed_groups"] == ["friends"]
    assert client.patch(path, {"inference_cap": None}).json()["inference_cap"] is None
    assert client.patch(path, {"inference_cap": -1}).status_code == 400


@pytest.mark.req("SCHED-03", "SCHED-04")
def test_operators_see_what_placing_knows_of_a_node(api_client, operator, now):
    sample = {"vram_used_mb": 3000, "foreign_mb": 1300, "foreign": "python3"}
    cards = [{"sample": sample, "link_group": 0, "pcie_root": "0"}, {"sample": False}]
    told = {"volume_prefixes": ["/data"], "host_ipc": False, "images": ["vllm/vllm-openai:v1"]}
    node = factories.make_node(cards=cards, load={"cpu_percent": 55.0}, **told)
    shown = api_client(operator).get(f"/api/v1/nodes/{node.public_id}").json()
    assert {name: shown[name] for name in told} == told
    load = shown["load"]
    assert (load["cpu_percent"], load["memory_percent"], load["disk_percent"]) == (55.0, None, None)
    first, second = shown["cards"]
    assert (first["foreign_mb"], first["foreign"], first["link_group"], first["pcie_root"]) == (
        1300,
        "python3",
        0,
        "0",
    )
    assert (second["foreign_mb"], second["foreign"]) == (None, None)
    silent = factories.make_node(load=False)
    assert api_client(operator).get(f"/api/v1/nodes/{silent.public_id}").json()["load"] is None


@pytest.mark.parametrize("role", list(Role))
def test_people_of_tenants_change_no_node_and_see_no_internals(role, api_client, tenant, fleet):
    person = factories.make_member(tenant, role)
    client = api_client(person)
    path = f"/api/v1/nodes/{fleet['named'].public_id}"
    listed, one = client.get("/api/v1/nodes").json(), client.get(path).json()
    assert listed["total"] == 3
    assert set(one) == {"id", "name", "online", "cordoned", "pool", "labels", "runtime", "engines", "cards"}
    assert fleet["named"].machine_id not in json.dumps([listed, one])
    assert client.patch(path, {"cordoned": True}).status_code == 403
    assert client.get(f"/api/v1/nodes/{fleet['foreign'].public_id}").status_code == 404
    assert client.patch(f"/api/v1/nodes/{fleet['foreign'].public_id}", {}).status_code == 404
    with pytest.raises(Forbidden):
        services.cordon(actor=viewer_of(person), node=fleet["named"])


def test_cordon_and_uncordon(fleet):
    assert services.cordon(actor=SYSTEM, node=fleet["all"]).cordoned
    assert not services.uncordon(actor=SYSTEM, node=fleet["all"]).cordoned
    assert not Node.objects.filter(cordoned=True).exists()


def test_a_node_is_online_by_when_the_server_heard_of_it(now, settings):
    edge = timedelta(seconds=settings.NODE_SILENT_S)
    assert selectors.is_online(now - edge, now)
    assert not selectors.is_online(now - edge - timedelta(milliseconds=1), now)
    assert not selectors.is_online(None, now)


def test_no_nodes_list_is_read_row_by_row(api_client, operator):
    def count():
        with CaptureQueriesContext(connection) as seen:
            api_client(operator).get("/api/v1/nodes")
        return len(seen)

    factories.make_node(cards=1)
    one = count()
    for _ in range(4):
        factories.make_node(cards=3)
    assert count() == one
