"""The table that the gateway reads: who may call, where a model leads, in a fixed number of statements."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agent.contract.door import derive_key
from agent.contract.states import Phase, State
from apps.core import versions
from apps.core.secrets import derive_engine_key, sha256_hex
from apps.fleet.models import Liveness, Port
from apps.routing import published
from apps.routing.models import ModelRoute
from apps.routing.services import create_route
from apps.routing.table import DEFAULT_SCOPES, INFERENCE, MODELS, PIN, Door
from apps.tenants.models import KeyScope, Tenant, TenantStatus, usual_scopes
from apps.tenants.scope import viewer_of
from apps.tenants.services import rotate_key, set_active
from apps.workloads.models import Task, TaskGroup
from tests import factories
from tests.factories import NOW

pytestmark = pytest.mark.django_db


def make_ready(group: TaskGroup, port: int, **fields: object) -> Task:
    """A replica that answers on a port of its node."""
    node = factories.make_node()
    fields.setdefault("phase", Phase.READY)
    task = factories.make_task(group, node=node, state=State.RUNNING, attempt=3, **fields)
    Port.objects.create(node=node, number=port, owner=task.public_id, attempt=3, container_port=8000)
    return task


@pytest.mark.req("GW-02", "TEN-01")
def test_keys_with_their_limits(tenant: Tenant) -> None:
    member = factories.make_member(tenant, username="ada")
    key, plain = factories.make_key(
        tenant, member, allowed_models=["a", "b"], expires_at=NOW + timedelta(hours=1)
    )
    factories.make_key(tenant, member, revoked_at=NOW)
    _, open_key = factories.make_key(tenant, member)
    table = published.load_table()
    assert set(table.keys) == {sha256_hex(plain), sha256_hex(open_key)}
    found = table.keys[sha256_hex(plain)]
    assert (found.key_id, found.prefix, found.member) == (key.public_id, key.prefix, "ada")
    assert (found.tenant_id, found.tenant_slug) == (tenant.public_id, tenant.slug)
    assert found.allowed_models == frozenset({"a", "b"})
    assert found.expires_at == (NOW + timedelta(hours=1)).timestamp()
    assert found.suspended is None
    plain_one = table.keys[sha256_hex(open_key)]
    assert (plain_one.expires_at, plain_one.allowed_models) == (None, None)
    assert published.find_key(sha256_hex(plain)) == found


@pytest.mark.req("TEN-06")
def test_a_rotated_key_is_published_under_both_values_until_the_overlap_is_over(tenant: Tenant) -> None:
    member = factories.make_member(tenant)
    limits = {"scopes": ["inference", "pin"], "allowed_addresses": ["10.0.0.0/8"]}
    key, old = factories.make_key(tenant, member, expires_at=NOW + timedelta(seconds=90), **limits)
    actor, ends = viewer_of(member), {}
    for overlap_s in (60, 600):
        _, new = rotate_key(actor=actor, key=key, now=NOW, overlap_s=overlap_s)
        table = published.load_table()
        assert set(table.keys) == {sha256_hex(old), sha256_hex(new)}
        former, present = table.keys[sha256_hex(old)], table.keys[sha256_hex(new)]
        assert former.key_id == present.key_id == key.public_id
        assert former.scopes == present.scopes == {"inference", "pin"}
        assert former.allowed_networks == present.allowed_networks == ("10.0.0.0/8",)
        assert (former.prefix, present.prefix) == (old[:11], new[:11])
        ends[overlap_s] = former.expires_at
        assert (published.find_key(sha256_hex(old)), published.find_key(sha256_hex(new))) == (former, present)
        old = new
    assert ends == {60: NOW.timestamp() + 60, 600: NOW.timestamp() + 90}  # never beyond the key's own end
    assert all(loaded.expires_at == NOW.timestamp() + 90 for loaded in published.load_table().keys.values())


@pytest.mark.req("TEN-06")
def test_the_words_of_scopes_are_the_gateways() -> None:
    assert set(KeyScope.values) == {INFERENCE, MODELS, PIN}
    assert frozenset(usual_scopes()) == DEFAULT_SCOPES


@pytest.mark.req("GW-02")
def test_a_revoked_or_unknown_key_is_not_found(tenant: Tenant) -> None:
    _, revoked = factories.make_key(tenant, revoked_at=NOW)
    assert published.find_key(sha256_hex(revoked)) is None
    assert published.find_key("0" * 64) is None


@pytest.mark.req("GW-02")
def test_the_keys_of_a_closed_account_open_nothing(tenant: Tenant) -> None:
    member = factories.make_member(tenant)
    _, plain = factories.make_key(tenant, member)
    before = published.read_version()
    set_active(user=member, active=False)
    assert published.read_version() > before
    assert published.load_table().keys == {} and published.find_key(sha256_hex(plain)) is None
    set_active(user=member, active=True)
    assert published.find_key(sha256_hex(plain)) is not None


@pytest.mark.req("GW-02")
def test_an_empty_list_of_models_is_not_all_of_them(tenant: Tenant) -> None:
    _, plain = factories.make_key(tenant, allowed_models=[])
    found = published.find_key(sha256_hex(plain))
    assert found is not None
    assert found.allowed_models == frozenset()


@pytest.mark.req("TEN-01")
@pytest.mark.parametrize("why", ["unpaid", ""])
def test_a_suspended_tenants_keys_carry_the_reason(why: str) -> None:
    tenant = factories.make_tenant(status=TenantStatus.SUSPENDED, suspended_reason=why)
    _, plain = factories.make_key(tenant)
    assert published.load_table().keys[sha256_hex(plain)].suspended == why


@pytest.mark.req("LIFE-08", "AGENT-17")
def test_only_ready_replicas_with_a_port_are_listed(tenant: Tenant) -> None:
    group = factories.make_group(tenant, model_name="tiny")
    route = create_route(group=group, model_name="tiny")
    ready = make_ready(group, 20001)
    make_ready(group, 20002, phase=Phase.LOADING)
    factories.make_task(group, node=factories.make_node(), state=State.RUNNING, phase=Phase.READY)
    factories.make_task(group)
    (listed,) = published.load_table().routes[tenant.public_id]["tiny"]
    assert (listed.route_id, listed.group_id) == (route.public_id, group.public_id)
    (replica,) = listed.replicas
    assert (replica.task_id, replica.attempt) == (ready.public_id, 3)
    assert (replica.host, replica.port) == ("127.0.0.1", 20001)
    assert (replica.engine, replica.served_model_name) == ("llamacpp", "tiny")
    assert replica.engine_key == derive_engine_key(ready.public_id, 3)


def test_an_engine_that_nobody_knows_gets_no_key_and_is_asked_for_its_name(tenant: Tenant) -> None:
    group = factories.make_group(tenant, model_name="own")
    create_route(group=group, model_name="own")
    make_ready(group, 20001, image="team/own:1", engine="", command=["serve"])
    (listed,) = published.load_table().routes[tenant.public_id]["own"]
    assert (listed.replicas[0].served_model_name, listed.replicas[0].engine_key) == ("", "")


@pytest.mark.req("GW-05")
def test_an_engine_under_somebodys_own_command_is_asked_for_its_name(tenant: Tenant) -> None:
    group = factories.make_group(tenant, model_name="tiny", state=State.RUNNING)
    create_route(group=group, model_name="tiny")
    make_ready(group, 20001, engine="vllm", command=["/models/x", "--served-model-name", "other"])
    ((route,),) = published.load_table().routes[tenant.public_id].values()
    (replica,) = route.replicas
    assert (replica.engine, replica.served_model_name) == ("vllm", "")


@pytest.mark.req("GW-03")
def test_routes_come_by_priority_and_a_known_model_keeps_an_entry(tenant: Tenant) -> None:
    first, second, third = (factories.make_group(tenant) for _ in range(3))
    create_route(group=first, model_name="m", priority=5)
    create_route(group=second, model_name="m", priority=0, weight=10)
    create_route(group=third, model_name="off", active=False)
    gone = factories.make_group(tenant)
    create_route(group=gone, model_name="gone")
    TaskGroup.objects.filter(pk=gone.pk).update(deleted_at=NOW)
    routes = published.load_table().routes[tenant.public_id]
    assert [route.group_id for route in routes["m"]] == [second.public_id, first.public_id]
    assert [route.replicas for route in routes["m"]] == [(), ()]
    assert routes["off"] == ()
    assert "gone" not in routes


def test_tenants_are_kept_apart() -> None:
    ones, others = (factories.make_group(model_name="same") for _ in range(2))
    for group in (ones, others):
        create_route(group=group, model_name="same")
    routes = published.load_table().routes
    for group in (ones, others):
        assert [route.group_id for route in routes[group.tenant.public_id]["same"]] == [group.public_id]


def test_a_bigger_table_costs_no_more_statements(tenant: Tenant) -> None:
    def fill(port: int) -> None:
        group = factories.make_group(tenant)
        create_route(group=group, model_name=f"model-{port}")
        make_ready(group, port)
        factories.make_key(tenant)

    def count() -> int:
        with CaptureQueriesContext(connection) as statements:
            published.load_table()
        return len(statements)

    fill(20001)
    few = count()
    for port in range(20002, 20022):
        fill(port)
    assert count() == few <= 8


@pytest.mark.req("GW-16")
def test_the_version_rises_with_each_change_of_routes(tenant: Tenant) -> None:
    assert published.read_version() == versions.read()
    before = published.read_version()
    create_route(group=factories.make_group(tenant), model_name="m")
    assert published.read_version() > before
    assert published.load_table().version == published.read_version()
    assert ModelRoute.objects.count() == 1


@pytest.mark.req("AGENT-16")
def test_a_node_behind_a_door_is_published_with_what_opens_it(tenant: Tenant) -> None:
    group = factories.make_group(tenant)
    create_route(group=group, model_name="m")
    direct, behind, broken = (make_ready(group, 20000 + number) for number in range(3))
    dial = {"kind": "door", "host": "10.0.0.7", "port": 7443, "certificate_sha256": "cd" * 32}
    behind.node.dial = dial
    behind.node.save()
    broken.node.dial = {"kind": "door", "host": "10.0.0.8"}
    broken.node.save()
    Liveness.objects.filter(node=behind.node).update(door_skew_s=-600.0)
    (route,) = published.load_table().routes[tenant.public_id]["m"]
    # What can't be read is left out: it must not be dialled past its door.
    assert [replica.task_id for replica in route.replicas] == [direct.public_id, behind.public_id]
    assert route.replicas[0].door is None
    assert route.replicas[1].door == Door(
        host="10.0.0.7",
        port=7443,
        certificate_sha256="cd" * 32,
        key=derive_key(behind.node.secret_sha256),
        skew_s=-600.0,
    )
