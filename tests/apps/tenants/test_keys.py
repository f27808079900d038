"""Gateway keys: shown once, kept as a hash, ended at once, and issued by whom the role allows."""

from datetime import timedelta

import pytest

from apps.core import secrets, versions
from apps.core.errors import Conflict, Forbidden, Invalid, NotFound
from apps.tenants import selectors, services
from apps.tenants.models import ApiKey, Role
from apps.tenants.scope import viewer_of
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-06")]


def issue(actor, tenant, member, now, **kw):
    return services.issue_key(
        actor=viewer_of(actor), tenant=tenant, member=member, name=kw.pop("name", "mine"), now=now, **kw
    )


def test_only_hash_and_prefix_rest_in_the_row(tenant, member, now):
    key, plain = issue(member, tenant, member, now)

    row = ApiKey.objects.filter(pk=key.pk).values().get()
    assert plain.startswith("sk-") and len(plain) == 39
    assert row["sha256"] == secrets.sha256_hex(plain)
    assert row["prefix"] == plain[:11]
    assert not any(plain in str(value) for value in row.values())


def test_every_change_is_seen_by_the_gateway(tenant, member, now):
    seen = [versions.read()]
    key, _ = issue(member, tenant, member, now)
    seen.append(versions.read())
    services.rotate_key(actor=viewer_of(member), key=key, now=now)
    seen.append(versions.read())
    services.revoke_key(actor=viewer_of(member), key=key, now=now)
    seen.append(versions.read())

    assert seen == sorted(set(seen))


def test_rotating_keeps_the_row_and_ends_the_old_value(tenant, member, now):
    key, old = issue(member, tenant, member, now, allowed_models=["a", "a", "b"])
    services.touch_keys({key.public_id: now})

    rotated, new = services.rotate_key(actor=viewer_of(member), key=key, now=now)

    assert (rotated.pk, rotated.public_id, rotated.allowed_models) == (key.pk, key.public_id, ["a", "b"])
    assert new != old
    assert not ApiKey.objects.filter(sha256=secrets.sha256_hex(old)).exists()
    assert ApiKey.objects.get(sha256=secrets.sha256_hex(new)).last_used_at is None


def test_a_revoked_or_expired_key_is_not_rotated(tenant, member, now):
    key, _ = issue(member, tenant, member, now)
    services.revoke_key(actor=viewer_of(member), key=key, now=now)
    with pytest.raises(Conflict) as refused:
        services.rotate_key(actor=viewer_of(member), key=key, now=now)
    assert refused.value.code == "already_revoked"

    late, _ = issue(member, tenant, member, now, expires_at=now + timedelta(hours=1))
    with pytest.raises(Conflict) as refused:
        services.rotate_key(actor=viewer_of(member), key=late, now=now + timedelta(hours=1))
    assert refused.value.code == "key_expired"


def test_revoking_twice_keeps_the_first_moment(tenant, member, now):
    key, _ = issue(member, tenant, member, now)
    services.revoke_key(actor=viewer_of(member), key=key, now=now)
    services.revoke_key(actor=viewer_of(member), key=key, now=now + timedelta(days=1))

    assert ApiKey.objects.get(pk=key.pk).revoked_at == now


def test_an_expiry_lies_in_the_future(tenant, member, now):
    with pytest.raises(Invalid) as refused:
        issue(member, tenant, member, now, expires_at=now)
    assert [(e.field, e.code) for e in refused.value.errors] == [("expires_at", "not_in_future")]


@pytest.mark.req("TEN-02")
@pytest.mark.parametrize(
    ("role", "for_self", "for_other"),
    [
        (Role.OWNER, True, True),
        (Role.ADMIN, True, True),
        (Role.MEMBER, True, False),
        (Role.VIEWER, False, False),
    ],
)
def test_roles_decide_for_whom_a_key_is_issued(role, for_self, for_other, tenant, member, now):
    actor = factories.make_member(tenant, role)
    for holder, allowed in ((actor, for_self), (member, for_other)):
        if allowed:
            issue(actor, tenant, holder, now)
        else:
            with pytest.raises(Forbidden):
                issue(actor, tenant, holder, now)


def test_keys_go_to_members_who_are_no_viewers(tenant, operator, now):
    admin = factories.make_member(tenant, Role.ADMIN)
    onlooker = factories.make_member(tenant, Role.VIEWER)
    stranger = factories.make_member()
    for holder, code in ((onlooker, "viewer_holds_no_key"), (stranger, "not_a_member")):
        with pytest.raises(Invalid) as refused:
            issue(admin, tenant, holder, now)
        assert [e.code for e in refused.value.errors] == [code]
    with pytest.raises(Invalid):
        issue(operator, tenant, stranger, now)
    key, _ = issue(operator, tenant, operator, now)
    assert key.member == operator


@pytest.mark.req("TEN-02", "TEN-04")
def test_who_sees_and_changes_which_keys(tenant, now):
    people = {role: factories.make_member(tenant, role) for role in Role}
    mine, _ = factories.make_key(tenant, people[Role.MEMBER])
    other, _ = factories.make_key(tenant, people[Role.ADMIN])
    foreign, _ = factories.make_key()

    def seen(role):
        return {key.pk for key in selectors.keys(viewer_of(people[role]))}

    assert seen(Role.MEMBER) == {mine.pk}
    assert seen(Role.ADMIN) == seen(Role.OWNER) == seen(Role.VIEWER) == {mine.pk, other.pk}
    with pytest.raises(NotFound):
        services.revoke_key(actor=viewer_of(people[Role.MEMBER]), key=other, now=now)
    with pytest.raises(NotFound):
        services.rotate_key(actor=viewer_of(people[Role.OWNER]), key=foreign, now=now)
    with pytest.raises(Forbidden):
        services.revoke_key(actor=viewer_of(people[Role.VIEWER]), key=mine, now=now)
    assert not ApiKey.objects.filter(revoked_at__isnull=False).exists()


def test_last_use_only_moves_forward(tenant, member, now):
    key, _ = factories.make_key(tenant, member)
    services.touch_keys({key.public_id: now, "key-aaaaaaaaaaaaaaaa": now})
    services.touch_keys({key.public_id: now - timedelta(minutes=1)})
    assert ApiKey.objects.get(pk=key.pk).last_used_at == now
    services.touch_keys({key.public_id: now + timedelta(minutes=1)})
    assert ApiKey.objects.get(pk=key.pk).last_used_at == now + timedelta(minutes=1)


def test_the_value_is_in_the_answers_that_make_it_and_in_no_other(api_client, tenant, member, caplog):
    caplog.set_level("DEBUG")
    client = api_client(member)
    made = client.post("/api/v1/api-keys", {"name": "laptop", "allowed_models": ["m"]})
    first = made.json()["key"]
    path = f"/api/v1/api-keys/{made.json()['id']}"
    turned = client.post(f"{path}/rotate")
    second = turned.json()["key"]

    others = [client.get("/api/v1/api-keys"), client.get(path), client.delete(path), client.get(path)]
    others += [
        client.post(f"{path}/rotate"),
        client.post("/api/v1/api-keys", {"name": first * 9, "x": first}),
    ]
    assert made.status_code == 201 and turned.status_code == 200
    assert made["Cache-Control"] == turned["Cache-Control"] == "no-store"
    assert [r.status_code for r in others] == [200, 200, 204, 200, 409, 400]
    for answer in others[:-1]:
        assert first not in answer.content.decode() and second not in answer.content.decode()
    assert "sha256" not in others[0].content.decode()
    assert first not in caplog.text and second not in caplog.text
    assert others[3].json()["revoked_at"] is not None


def test_a_key_for_a_stranger_and_for_nobody_is_one_answer(api_client, tenant):
    admin = factories.make_member(tenant, Role.ADMIN)
    stranger = factories.make_member()
    bodies = []
    for name in (stranger.username, "nobody-of-that-name"):
        answer = api_client(admin).post("/api/v1/api-keys", {"name": "k", "member": name})
        assert answer.status_code == 400
        bodies.append(answer.content.decode().replace(name, "?").split('"request_id"')[0])
    assert bodies[0] == bodies[1]
