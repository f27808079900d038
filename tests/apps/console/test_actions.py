"""The console's actions: they ask on GET, act by services on POST, and say refusals as sentences."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agent.contract.states import State
from apps.core import versions
from apps.fleet.models import JoinToken, Liveness, Node
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.tenants.models import ApiKey, Membership, Quota, Role, Tenant, User
from apps.workloads.models import Loan, Task, TaskGroup
from tests import factories


def act(client: Client, page: str, /, *args: Any, **form: Any) -> Any:
    """Open an action's page, then do it; answers the page that it leads to."""
    address = reverse(f"admin:{page}", args=args)
    assert client.get(address).status_code == 200
    return client.post(address, form, follow=True)


def key_in(answer: Any) -> str:
    found = re.search(r"sk-[0-9a-f-]{36}", answer.content.decode())
    assert found is not None
    assert "no-store" in answer["Cache-Control"]
    return found.group()


@pytest.mark.req("TEN-06")
def test_issue_rotate_and_revoke_a_key(full: dict[str, Any], operator_client: Client) -> None:
    form = {"tenant": full["tenant"].pk, "member": full["member"].pk, "name": "ci", "allowed_models": "a,b"}
    first = key_in(act(operator_client, "tenants_apikey_issue", **form))
    key = ApiKey.objects.get(name="ci")
    assert key.allowed_models == ["a", "b"]
    second = key_in(act(operator_client, "tenants_apikey_rotate", key.pk))
    assert second != first
    assert "is revoked" in act(operator_client, "tenants_apikey_revoke", key.pk).content.decode()
    key.refresh_from_db()
    assert key.revoked_at is not None
    refused = act(operator_client, "tenants_apikey_rotate", key.pk).content.decode()
    assert "issue a new one" in refused


@pytest.mark.req("TEN-06")
def test_a_keys_limits_are_changed_and_the_old_value_is_given_time(
    full: dict[str, Any], operator_client: Client
) -> None:
    key, old = full["key"], full["plain"]
    form = {"name": "ci", "allowed_addresses": "192.0.2.0/24", "scopes": ["models"]}
    act(operator_client, "tenants_apikey_change_limits", key.pk, **form)
    key.refresh_from_db()
    assert (key.name, key.allowed_addresses, key.scopes) == ("ci", ["192.0.2.0/24"], ["models"])
    wrong = act(operator_client, "tenants_apikey_change_limits", key.pk, name="ci", allowed_addresses="x")
    assert "write an address" in wrong.content.decode()
    act(operator_client, "tenants_apikey_rotate", key.pk, overlap_seconds=60)
    page = operator_client.get(reverse("admin:tenants_apikey_change", args=[key.pk])).content.decode()
    assert f"{old[:11]}…, until" in page


def test_a_key_for_somebody_outside_the_tenant_is_refused_in_words(
    full: dict[str, Any], operator_client: Client
) -> None:
    stranger = factories.make_user()
    form = {"tenant": full["tenant"].pk, "member": stranger.pk, "name": "no"}
    text = act(operator_client, "tenants_apikey_issue", **form).content.decode()
    assert "no member of this tenant" in text
    assert not ApiKey.objects.filter(name="no").exists()


@pytest.mark.req("TEN-01")
def test_suspend_needs_a_reason_and_resume_ends_it(full: dict[str, Any], operator_client: Client) -> None:
    tenant = full["tenant"]
    act(operator_client, "tenants_tenant_suspend", tenant.pk, reason="")
    tenant.refresh_from_db()
    assert tenant.status == "active"
    before = versions.read()
    act(operator_client, "tenants_tenant_suspend", tenant.pk, reason="Invoice 12")
    tenant.refresh_from_db()
    assert (tenant.status, tenant.suspended_reason) == ("suspended", "Invoice 12")
    assert versions.read() > before
    act(operator_client, "tenants_tenant_resume", tenant.pk)
    tenant.refresh_from_db()
    assert tenant.status == "active"


@pytest.mark.req("TEN-07")
def test_a_tenant_is_made_with_its_quota_and_both_pages_change_it(
    full: dict[str, Any], operator_client: Client
) -> None:
    add = reverse("admin:tenants_tenant_add")
    inline = {f"memberships-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL")} | {"weight": "2.5"}
    operator_client.post(add, {"slug": "fresh", "name": "Fresh", "gpus": "4", "replicas": "", **inline})
    tenant = Tenant.objects.get(slug="fresh")
    assert (tenant.quota.gpus, tenant.quota.replicas) == (4, None)
    page = reverse("admin:tenants_tenant_change", args=[tenant.pk])
    operator_client.post(page, {"name": "Renamed", "gpus": "8", "replicas": "2", **inline})
    tenant = Tenant.objects.get(slug="fresh")
    assert (tenant.name, tenant.quota.gpus, tenant.quota.replicas) == ("Renamed", 8, 2)
    assert tenant.weight == 2.5
    quota = reverse("admin:tenants_quota_change", args=[tenant.quota.pk])
    operator_client.post(quota, {"gpus": "", "replicas": "3"})
    assert Quota.objects.filter(tenant=tenant, gpus=None, replicas=3).exists()


@pytest.mark.req("TEN-02")
def test_memberships_go_through_the_service(full: dict[str, Any], operator_client: Client) -> None:
    person = factories.make_user()
    add = reverse("admin:tenants_membership_add")
    operator_client.post(add, {"user": person.pk, "tenant": full["tenant"].pk, "role": "member"})
    membership = Membership.objects.get(user=person)
    key, _plain = factories.make_key(full["tenant"], person)
    page = reverse("admin:tenants_membership_change", args=[membership.pk])
    operator_client.post(page, {"role": Role.VIEWER})
    key.refresh_from_db()
    assert key.revoked_at is not None, "a viewer holds no keys; the service says so, not this page"
    operator_client.post(
        reverse("admin:tenants_membership_delete", args=[membership.pk]), {"post": "yes"}, follow=True
    )
    assert not Membership.objects.filter(user=person).exists()


def test_a_user_is_made_with_a_password_that_works(full: dict[str, Any], operator_client: Client) -> None:
    secret = "quite-a-long-passphrase"
    form = {"username": "newcomer", "email": "", "password1": secret, "password2": secret}
    operator_client.post(reverse("admin:tenants_user_add"), {**form, "usable_password": "true"})
    assert User.objects.get(username="newcomer").check_password(secret)


def test_cordon_and_uncordon(full: dict[str, Any], operator_client: Client) -> None:
    node = full["node"]
    act(operator_client, "fleet_node_cordon", node.pk)
    assert Node.objects.get(pk=node.pk).cordoned
    act(operator_client, "fleet_node_uncordon", node.pk)
    assert not Node.objects.get(pk=node.pk).cordoned
    chosen = {"action": "cordon_selected", "_selected_action": [node.pk]}
    operator_client.post(reverse("admin:fleet_node_changelist"), chosen)
    assert Node.objects.get(pk=node.pk).cordoned


@pytest.mark.req("TEN-09")
def test_allow_list_is_set_by_the_service(full: dict[str, Any], operator_client: Client) -> None:
    node = full["node"]
    page = reverse("admin:fleet_node_change", args=[node.pk])
    inlines = ("cards", "model_files")
    counts = {f"{p}-{n}_FORMS": v for p in inlines for n, v in (("TOTAL", 0), ("INITIAL", 0))}
    form = {"name": "renamed", "pool": "a", "labels": "{}", "inference_cap": "0"}
    operator_client.post(page, {**form, **counts, "allowed_tenants": [full["tenant"].pk]})
    node = Node.objects.get(pk=node.pk)
    assert (node.name, node.pool, node.open_to_all, node.inference_cap) == ("renamed", "a", False, 0)
    assert list(node.allowed_tenants.all()) == [full["tenant"]]


def test_join_command_is_shown_once(full: dict[str, Any], operator_client: Client) -> None:
    before = JoinToken.objects.count()
    text = act(operator_client, "fleet_node_new_join_token").content.decode()
    token = re.search(r"jt-[A-Za-z0-9_-]{24,}", text)
    assert token is not None
    assert JoinToken.objects.count() == before + 1
    listed = operator_client.get(reverse("admin:fleet_jointoken_changelist")).content.decode()
    assert token.group() not in listed


@pytest.mark.req("LIFE-04")
def test_stop_start_and_delete_a_group(full: dict[str, Any], operator_client: Client) -> None:
    group = factories.make_group()
    task = factories.make_task(group)
    assert (
        "1 task was told to stop."
        in act(operator_client, "workloads_taskgroup_stop", group.pk).content.decode()
    )
    task.refresh_from_db()
    assert task.state == State.STOPPED
    act(operator_client, "workloads_taskgroup_start", group.pk)
    task.refresh_from_db()
    assert task.state == State.PENDING
    act(operator_client, "workloads_taskgroup_delete_group", group.pk)
    assert TaskGroup.objects.get(pk=group.pk).deleted_at is not None


def test_stop_a_task_and_say_when_there_was_nothing_to_stop(
    full: dict[str, Any], operator_client: Client
) -> None:
    task = factories.make_task(factories.make_group())
    act(operator_client, "workloads_task_stop", task.pk)
    task.refresh_from_db()
    assert task.state == State.STOPPED
    assert "Nothing to stop" in act(operator_client, "workloads_task_stop", task.pk).content.decode()


def test_a_route_changes_by_the_service_and_its_rules_are_told(
    full: dict[str, Any], operator_client: Client
) -> None:
    route = ModelRoute.objects.get(external=None)
    page = reverse("admin:routing_modelroute_change", args=[route.pk])
    form = {"priority": "3", "weight": "40", "version": "v2", "balancing": "random", "active": "on"}
    before = versions.read()
    operator_client.post(page, form)
    route.refresh_from_db()
    assert (route.priority, route.weight, route.version) == (3, 40, "v2")
    assert versions.read() > before
    refused = operator_client.post(page, {**form, "weight": "101"}, follow=True).content.decode()
    assert "it must be from 0 to 100" in refused
    route.refresh_from_db()
    assert route.weight == 40


def test_an_endpoint_rotates_its_key_and_is_removed(full: dict[str, Any], operator_client: Client) -> None:
    endpoint = InferenceEndpoint.objects.get()
    key_in(act(operator_client, "routing_inferenceendpoint_rotate", endpoint.pk))
    act(operator_client, "routing_inferenceendpoint_remove", endpoint.pk)
    assert not InferenceEndpoint.objects.exists()
    assert TaskGroup.objects.filter(pk=full["group"].pk).exists()


def test_actions_are_closed_to_staff_without_operator_rights(full: dict[str, Any]) -> None:
    staff = Client()
    staff.force_login(factories.make_user(is_staff=True))
    for name, row in (
        ("workloads_task_stop", full["task"]),
        ("workloads_taskgroup_delete_group", full["group"]),
        ("tenants_apikey_revoke", full["key"]),
        ("fleet_node_cordon", full["node"]),
        ("tenants_tenant_suspend", full["tenant"]),
    ):
        assert staff.post(reverse(f"admin:{name}", args=[row.pk]), {"reason": "x"}).status_code == 403
    assert staff.post(reverse("admin:tenants_apikey_issue")).status_code == 403
    assert staff.post(reverse("admin:fleet_jointoken_new_join_token")).status_code == 403
    full["key"].refresh_from_db()
    assert full["key"].revoked_at is None


def test_an_unknown_row_is_404(full: dict[str, Any], operator_client: Client) -> None:
    assert operator_client.post(reverse("admin:workloads_task_stop", args=[999999])).status_code == 404


@pytest.mark.req("LIFE-04", "SLEEP-01", "SLEEP-02")
def test_sleep_wake_and_scale_of_a_group_and_a_task(full: dict[str, Any], operator_client: Client) -> None:
    group = factories.make_group(full["tenant"], full["member"], state=State.RUNNING, max_replicas=2)
    node = factories.make_node()
    Liveness.objects.filter(node=node).update(last_seen_at=factories.utc_now())
    task = factories.make_task(group, state=State.RUNNING, phase="ready", attempt=1, node=node)
    factories.make_claim(task, node, incarnation="run-1")

    def told(page: str, pk: int, **form: Any) -> str:
        return str(act(operator_client, page, pk, **form).content.decode())

    assert "Asked to sleep" in told("workloads_task_sleep", task.pk)
    assert "falling asleep already" in told("workloads_task_sleep", task.pk)
    assert "Nothing to put to sleep" in told("workloads_taskgroup_sleep", group.pk)
    Task.objects.filter(pk=task.pk).update(state=State.SLEEPING)
    assert "Asked to wake" in told("workloads_taskgroup_wake", group.pk)
    assert "waking already" in told("workloads_task_wake", task.pk)
    assert "now has 2 replica(s)" in told("workloads_taskgroup_scale", group.pk, replicas="2")
    assert "above max_replicas" in told("workloads_taskgroup_scale", group.pk, replicas="3")
    assert group.tasks.count() == 2


@pytest.mark.req("SLEEP-05", "SHARE-04")
def test_an_operator_ends_a_loan(full: dict[str, Any], operator_client: Client) -> None:
    node = factories.make_node()
    lender = factories.make_task(full["group"], state=State.SLEEPING, attempt=1, node=node)
    card = factories.make_claim(lender, node, incarnation="run-1").cards.get()
    borrower = factories.make_task(full["group"], state=State.RUNNING, attempt=1, node=node)
    claim = factories.make_claim(borrower, node, incarnation="run-1")
    now = factories.utc_now()
    loan = Loan.objects.create(card=card, borrower=claim, since=now, until=now + timedelta(hours=1))
    assert operator_client.get(reverse("admin:workloads_loan_add")).status_code == 403

    assert "The borrower stops" in act(operator_client, "workloads_loan_end_loan", loan.pk).content.decode()
    borrower.refresh_from_db()
    assert (borrower.state, borrower.reason_code) == (State.PENDING, "loan_ended")
    assert "on its way already" in act(operator_client, "workloads_loan_end_loan", loan.pk).content.decode()
