"""Roles: nobody gives, changes or takes a role above their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core.errors import Conflict, Forbidden, Invalid, Refusal
from apps.tenants import selectors, services
from apps.tenants.models import ApiKey, Membership, Role, User
from apps.tenants.scope import viewer_of
from apps.tenants.services.members import ORDER
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-02")]

roles = st.sampled_from(list(Role))


@given(own=roles, present=roles, wanted=roles)
def test_a_role_moves_only_below_the_hand_that_moves_it(own, present, wanted):
    tenant = factories.make_tenant()
    actor, target = factories.make_member(tenant, own), factories.make_member(tenant, present)
    factories.make_member(tenant, Role.OWNER)
    membership = Membership.objects.get(user=target, tenant=tenant)
    may = own in (Role.OWNER, Role.ADMIN) and ORDER[own] >= max(ORDER[present], ORDER[wanted])

    try:
        services.change_role(actor=viewer_of(actor), membership=membership, role=wanted, now=factories.NOW)
        changed = True
    except Refusal:
        changed = False

    assert changed is may
    assert Membership.objects.get(pk=membership.pk).role == (wanted if may else present)


@given(own=roles, wanted=roles)
def test_adding_gives_no_role_above_ones_own(own, wanted):
    tenant = factories.make_tenant()
    actor, newcomer = factories.make_member(tenant, own), factories.make_user()
    may = own in (Role.OWNER, Role.ADMIN) and ORDER[own] >= ORDER[wanted]
    try:
        services.add_member(actor=viewer_of(actor), tenant=tenant, user=newcomer, role=wanted)
    except Refusal:
        pass
    assert Membership.objects.filter(user=newcomer, tenant=tenant).exists() is may


def test_a_role_in_one_tenant_is_none_in_another(tenant):
    owner_elsewhere = factories.make_member(role=Role.OWNER)
    with pytest.raises(Forbidden):
        services.add_member(
            actor=viewer_of(owner_elsewhere), tenant=tenant, user=factories.make_user(), role=Role.VIEWER
        )


def test_the_last_owner_stays_unless_an_operator_says_otherwise(tenant, operator, now):
    owner = factories.make_member(tenant, Role.OWNER)
    membership = Membership.objects.get(user=owner, tenant=tenant)
    for act in (
        lambda: services.change_role(actor=viewer_of(owner), membership=membership, role=Role.ADMIN, now=now),
        lambda: services.remove_member(actor=viewer_of(owner), membership=membership, now=now),
    ):
        with pytest.raises(Conflict) as refused:
            act()
        assert refused.value.code == "last_owner"
    services.remove_member(actor=viewer_of(operator), membership=membership, now=now)
    assert not Membership.objects.filter(pk=membership.pk).exists()


@pytest.mark.req("TEN-06")
@pytest.mark.parametrize("how", ["removed", "viewer"])
def test_who_leaves_or_only_views_holds_no_key_any_more(how, tenant, now):
    admin, person = factories.make_member(tenant, Role.ADMIN), factories.make_member(tenant)
    here, _ = factories.make_key(tenant, person)
    factories.make_member(elsewhere := factories.make_tenant(), user=person)
    there, _ = factories.make_key(elsewhere, person)
    membership = Membership.objects.get(user=person, tenant=tenant)
    if how == "removed":
        services.remove_member(actor=viewer_of(admin), membership=membership, now=now)
    else:
        services.change_role(actor=viewer_of(admin), membership=membership, role=Role.VIEWER, now=now)
    assert ApiKey.objects.get(pk=here.pk).revoked_at == now
    assert ApiKey.objects.get(pk=there.pk).revoked_at is None


def test_everybody_may_leave(tenant, member, now):
    membership = Membership.objects.get(user=member, tenant=tenant)
    services.remove_member(actor=viewer_of(member), membership=membership, now=now)
    assert viewer_of(member).roles == {}


def test_a_mere_member_sees_only_themselves_among_members(tenant, member):
    onlooker = factories.make_member(tenant, Role.VIEWER)
    assert [m.user for m in selectors.members(viewer_of(member), tenant)] == [member]
    assert {m.user for m in selectors.members(viewer_of(onlooker), tenant)} == {member, onlooker}


def test_weak_passwords_and_taken_names_are_refused(db):
    with pytest.raises(Invalid) as refused:
        services.create_user(username="ann", password="password")
    assert refused.value.errors[0].field == "password" and refused.value.errors[0].value is None
    services.create_user(username="ann", password=factories.PASSWORD)
    with pytest.raises(Conflict):
        services.create_user(username="ann", password=factories.PASSWORD)
    assert not User.objects.get().is_operator


def test_members_by_address(api_client, tenant):
    admin = factories.make_member(tenant, Role.ADMIN)
    client, base = api_client(admin), f"/api/v1/tenants/{tenant.public_id}/members"
    made = client.post(base, {"username": "new", "role": "member", "password": factories.PASSWORD})
    assert made.status_code == 201, made.content
    one = f"{base}/{made.json()['id']}"
    again = client.post(base, {"username": "new", "role": "member"})
    assert again.status_code == 409 and again.json()["errors"][0]["code"] == "already_a_member"
    above = client.patch(one, {"role": "owner"})
    assert above.status_code == 400 and above.json()["errors"][0]["code"] == "role_above_own"
    assert client.patch(one, {"role": "viewer"}).json()["role"] == "viewer"
    assert client.get(base).json()["total"] == 2
    assert client.delete(one).status_code == 204
    assert client.delete(one).status_code == 404
    unknown = client.post(base, {"username": "who", "role": "member"})
    assert unknown.json()["errors"][0]["code"] == "no_such_user"
    assert not User.objects.filter(username="who").exists()
