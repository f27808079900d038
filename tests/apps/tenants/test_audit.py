"""The audit trail over the API: who reads what of it, filters, and acts that are noted exactly once."""

from datetime import timedelta

import pytest

from apps.core.models import AuditEntry
from apps.tenants import services
from apps.tenants.models import Role
from apps.tenants.scope import viewer_of
from tests import factories
from tests.apps.core.threads import run_at_once

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-08")]

AUDIT = "/api/v1/audit"


@pytest.fixture
def owner(tenant):
    return factories.make_member(tenant, Role.OWNER)


def verbs(answer):
    assert answer.status_code == 200, answer.json()
    return [item["verb"] for item in answer.json()["items"]]


def test_who_issues_a_key_is_on_record_without_the_key(api_client, tenant, member, owner):
    issued = api_client(member).post(
        "/api/v1/api-keys", {"name": "mine"}, HTTP_X_REQUEST_ID="req-of-the-test", REMOTE_ADDR="192.0.2.9"
    )
    entry = api_client(owner).get(AUDIT).json()["items"][0]
    assert entry["verb"] == "issue_key" and entry["text"]
    assert entry["actor"] == {"id": member.public_id, "name": member.username, "operator": False}
    assert entry["object"] == {"kind": "key", "id": issued.json()["id"], "name": "mine"}
    assert entry["tenant"] == {"id": tenant.public_id, "slug": tenant.slug}
    assert (entry["address"], entry["request_id"]) == ("192.0.2.9", "req-of-the-test")
    assert issued.json()["key"] not in str(AuditEntry.objects.values().get())


def test_owners_read_their_tenants_acts_members_none_operators_all(
    api_client, tenant, member, owner, operator
):
    elsewhere = factories.make_member(factories.make_tenant(), Role.OWNER)
    api_client(member).post("/api/v1/api-keys", {"name": "mine"})
    api_client(elsewhere).post("/api/v1/api-keys", {"name": "theirs"})
    api_client(operator).post("/api/v1/join-tokens", {})
    assert verbs(api_client(owner).get(AUDIT)) == ["issue_key"]
    assert verbs(api_client(operator).get(AUDIT)) == ["create_join_token", "issue_key", "issue_key"]
    refused = api_client(member).get(AUDIT)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_filters_by_object_actor_verb_kind_tenant_and_time(api_client, operator, tenant, member):
    key = api_client(member).post("/api/v1/api-keys", {"name": "mine"}).json()["id"]
    api_client(member).post(f"/api/v1/api-keys/{key}/rotate")
    api_client(operator).post("/api/v1/join-tokens", {})
    client = api_client(operator)
    assert verbs(client.get(AUDIT, {"object": key})) == ["rotate_key", "issue_key"]
    assert verbs(client.get(AUDIT, {"actor": member.username, "verb": "issue_key"})) == ["issue_key"]
    assert verbs(client.get(AUDIT, {"actor": operator.public_id})) == ["create_join_token"]
    assert verbs(client.get(AUDIT, {"kind": "join_token"})) == ["create_join_token"]
    assert verbs(client.get(AUDIT, {"tenant": tenant.slug})) == ["rotate_key", "issue_key"]
    last = AuditEntry.objects.first().at
    assert verbs(client.get(AUDIT, {"since": last.isoformat()})) == ["create_join_token"]
    assert verbs(client.get(AUDIT, {"until": (last - timedelta(days=1)).isoformat()})) == []
    page = client.get(AUDIT, {"page_size": 1, "page": 2}).json()
    assert (page["total"], [item["verb"] for item in page["items"]]) == (3, ["rotate_key"])
    assert client.get(AUDIT, {"since": "yesterday"}).status_code == 400


def test_before_and_after_name_the_changed_fields_alone(api_client, operator, tenant):
    api_client(operator).patch(f"/api/v1/tenants/{tenant.public_id}", {"quota": {"gpus": 4}})
    entry = AuditEntry.objects.get()
    assert (entry.verb, entry.before, entry.after) == ("change_tenant", {"gpus": None}, {"gpus": 4})


def test_what_changes_nothing_and_what_is_refused_leaves_no_row(api_client, operator, tenant, member):
    api_client(operator).patch(f"/api/v1/tenants/{tenant.public_id}", {"name": tenant.name})
    api_client(member).post("/api/v1/api-keys", {"name": "x", "expires_at": "2001-01-01T00:00:00Z"})
    api_client(operator).patch(
        f"/api/v1/tenants/{tenant.public_id}", {"name": "other", "status": "suspended"}
    )  # refused for want of a reason, and the name with it
    assert not AuditEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_two_who_revoke_one_key_at_once_leave_one_row(member, operator):
    key, _ = factories.make_key(member.memberships.get().tenant, member)
    actor = viewer_of(operator)
    run_at_once(2, lambda _: services.revoke_key(actor=actor, key=key, now=factories.NOW))
    assert AuditEntry.objects.filter(verb="revoke_key").count() == 1


def test_a_leaving_members_keys_are_on_record(api_client, operator, tenant, member):
    factories.make_key(tenant, member)
    path = f"/api/v1/tenants/{tenant.public_id}/members/{member.public_id}"
    assert api_client(operator).delete(path).status_code == 204
    assert list(AuditEntry.objects.values_list("verb", flat=True)) == ["remove_member", "revoke_key"]
