"""Tenants: made, limited and suspended by operators; read by their people."""

import pytest

from apps.core import versions
from apps.core.errors import Forbidden
from apps.tenants import services
from apps.tenants.models import Role, Tenant
from apps.tenants.scope import viewer_of
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-01")]


def test_an_operator_makes_limits_suspends_and_resumes(api_client, operator):
    client = api_client(operator)
    made = client.post("/api/v1/tenants", {"slug": "lab", "name": "The lab", "quota": {"gpus": 8}})
    assert made.status_code == 201, made.content
    assert made.json()["quota"]["gpus"] == 8 and made.json()["quota"]["replicas"] is None
    path = f"/api/v1/tenants/{made.json()['id']}"

    changed = client.patch(path, {"name": "Lab", "quota": {"gpus": None, "replicas": 2}})
    assert changed.json()["quota"] == {**made.json()["quota"], "gpus": None, "replicas": 2}
    assert client.patch(path, {"weight": 2.5}).json()["weight"] == 2.5
    assert client.patch(path, {"weight": 0}).status_code == 400
    before = versions.read()
    suspended = client.patch(path, {"status": "suspended", "suspended_reason": "unpaid"})
    assert (suspended.json()["status"], suspended.json()["suspended_reason"]) == ("suspended", "unpaid")
    assert versions.read() == before + 1
    resumed = client.patch(path, {"status": "active"})
    assert (resumed.json()["status"], resumed.json()["suspended_reason"]) == ("active", "")
    assert versions.read() == before + 2


def test_a_suspension_without_a_reason_changes_nothing(api_client, operator, tenant):
    answer = api_client(operator).patch(
        f"/api/v1/tenants/{tenant.public_id}", {"status": "suspended", "name": "other"}
    )
    assert answer.status_code == 400
    assert [(e["field"], e["code"]) for e in answer.json()["errors"]] == [("suspended_reason", "required")]
    tenant.refresh_from_db()
    assert tenant.status == "active" and tenant.name != "other"


@pytest.mark.parametrize("role", list(Role))
def test_nobody_below_an_operator_changes_tenants(role, api_client, tenant):
    person = factories.make_member(tenant, role)
    client = api_client(person)
    assert client.get(f"/api/v1/tenants/{tenant.public_id}").json()["my_role"] == role
    assert client.patch(f"/api/v1/tenants/{tenant.public_id}", {"quota": {"gpus": 9}}).status_code == 403
    assert client.post("/api/v1/tenants", {"slug": "mine"}).status_code == 403
    with pytest.raises(Forbidden):
        services.suspend_tenant(actor=viewer_of(person), tenant=tenant, reason="x")
    with pytest.raises(Forbidden):
        services.create_tenant(actor=viewer_of(person), slug="mine")


def test_people_see_their_own_tenants_only(api_client, tenant, member):
    factories.make_tenant()
    assert [row["slug"] for row in api_client(member).get("/api/v1/tenants").json()["items"]] == [tenant.slug]


def test_a_taken_slug_is_a_conflict(api_client, operator, tenant):
    answer = api_client(operator).post("/api/v1/tenants", {"slug": tenant.slug})
    assert answer.status_code == 409
    assert (answer.json()["code"], answer.json()["errors"][0]["field"]) == ("name_taken", "slug")
    assert Tenant.objects.count() == 1


def test_me_shows_roles(api_client, tenant, member):
    me = api_client(member).get("/api/v1/me").json()
    assert me["username"] == member.username and me["is_operator"] is False
    assert [(m["tenant"]["slug"], m["role"]) for m in me["memberships"]] == [(tenant.slug, "member")]
