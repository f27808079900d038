"""Gateway keys: shown once, kept as a hash, ended at once, and issued by whom the role allows."""

from datetime import timedelta

import pytest

from apps.core import secrets, versions
from apps.core.errors import Conflict, Forbidden, Invalid, NotFound
from apps.core.models import AuditEntry
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


def rotate(actor, key, now, overlap_s):
    return services.rotate_key(actor=viewer_of(actor), key=key, now=now, overlap_s=overlap_s)


def test_the_value_before_lives_on_for_the_overlap(tenant, member, now):
    key, first = issue(member, tenant, member, now)
    _, second = rotate(member, key, now, 60)
    row = ApiKey.objects.get(pk=key.pk)
    assert (row.sha256, row.former_sha256) == (secrets.sha256_hex(second), secrets.sha256_hex(first))
    assert (row.former_prefix, row.former_until) == (first[:11], now + timedelta(seconds=60))

    _, third = rotate(member, key, now, 30)  # of three values the newest two
    row.refresh_from_db()
    assert (row.sha256, row.former_sha256) == (secrets.sha256_hex(third), secrets.sha256_hex(second))
    assert row.former_until == now + timedelta(seconds=30)

    rotate(member, key, now, 0)
    row.refresh_from_db()
    assert (row.former_sha256, row.former_prefix, row.former_until) == (None, "", None)


def test_an_overlap_has_an_end(tenant, member, now, settings):
    settings.KEY_OVERLAP_MAX_S = 60
    key, _ = issue(member, tenant, member, now)
    before = ApiKey.objects.filter(pk=key.pk).values().get()
    for overlap_s in (-1, 61):
        with pytest.raises(Invalid) as refused:
            rotate(member, key, now, overlap_s)
        assert [(e.field, e.code) for e in refused.value.errors] == [("overlap_seconds", "out_of_range")]
    assert ApiKey.objects.filter(pk=key.pk).values().get() == before


def test_limits_are_stored_in_their_usual_writing(tenant, member, now):
    key, _ = issue(
        member,
        tenant,
        member,
        now,
        scopes=["pin", "inference", "pin"],
        allowed_addresses=["10.0.0.0/8", "192.0.2.7", " 2001:DB8::/32 ", "10.0.0.0/8"],
    )
    row = ApiKey.objects.get(pk=key.pk)
    assert row.scopes == ["inference", "pin"]
    assert row.allowed_addresses == ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]
    usual = ApiKey.objects.get(pk=issue(member, tenant, member, now, allowed_addresses=[])[0].pk)
    assert (usual.scopes, usual.allowed_addresses) == (["inference", "models"], None)


@pytest.mark.parametrize(
    ("limits", "field", "code"),
    [
        ({"scopes": []}, "scopes", "scopes_needed"),
        ({"scopes": ["inference", "root"]}, "scopes", "not_a_choice"),
        ({"allowed_addresses": ["10.0.0.5/8"]}, "allowed_addresses", "not_a_network"),
        ({"allowed_addresses": ["example.org"]}, "allowed_addresses", "not_a_network"),
        ({"allowed_addresses": [""]}, "allowed_addresses", "not_a_network"),
        ({"allowed_addresses": [f"10.0.0.{n}" for n in range(51)]}, "allowed_addresses", "out_of_range"),
        ({"allowed_models": [str(n) for n in range(201)]}, "allowed_models", "out_of_range"),
    ],
)
def test_a_limit_that_breaks_a_rule_is_named(tenant, member, now, limits, field, code):
    key, _ = issue(member, tenant, member, now)
    for call in (
        lambda: issue(member, tenant, member, now, **limits),
        lambda: services.change_key(actor=viewer_of(member), key=key, changes=limits, now=now),
    ):
        with pytest.raises(Invalid) as refused:
            call()
        assert [(e.field, e.code) for e in refused.value.errors] == [(field, code)]


def test_a_change_is_noted_told_to_gateways_and_touches_no_more(tenant, member, now):
    key, _ = issue(member, tenant, member, now, allowed_models=["a"], expires_at=now + timedelta(hours=1))
    seen = versions.read()

    def change(**changes):
        return services.change_key(actor=viewer_of(member), key=key, changes=changes, now=now)

    changed = change(allowed_addresses=["10.0.0.0/8"], expires_at=None, name="other")
    assert (changed.name, changed.allowed_addresses, changed.expires_at) == ("other", ["10.0.0.0/8"], None)
    assert (changed.allowed_models, changed.sha256) == (["a"], key.sha256)
    entry = AuditEntry.objects.get(verb="change_key")
    assert set(entry.after) == {"name", "allowed_addresses", "expires_at"}
    assert entry.before["name"] == "mine"
    assert versions.read() == seen + 1
    change(name="other")
    assert (AuditEntry.objects.filter(verb="change_key").count(), versions.read()) == (1, seen + 1)
    services.revoke_key(actor=viewer_of(member), key=key, now=now)
    with pytest.raises(Conflict):
        change(name="again")


@pytest.mark.req("TEN-02")
@pytest.mark.parametrize(
    ("bound", "narrower", "wider"),
    [
        ({"scopes": ["inference"]}, {"scopes": ["inference"]}, {"scopes": ["inference", "pin"]}),
        ({"allowed_models": ["a", "b"]}, {"allowed_models": []}, {"allowed_models": ["a", "c"]}),
        ({"allowed_models": ["a", "b"]}, {"allowed_models": ["b"]}, {"allowed_models": None}),
        (
            {"allowed_addresses": ["10.0.0.0/8", "fd00::/8"]},
            {"allowed_addresses": ["10.1.2.3", "fd00::1"]},
            {"allowed_addresses": ["10.0.0.0/7"]},
        ),
        (
            {"allowed_addresses": ["10.0.0.0/8"]},
            {"allowed_addresses": ["10.0.0.0/8"]},
            {"allowed_addresses": []},
        ),
        ({"expires_at": 3600}, {"expires_at": 60}, {"expires_at": 3601}),
        ({"expires_at": 3600}, {"expires_at": 3600}, {"expires_at": None}),
    ],
)
def test_what_a_manager_set_a_member_may_narrow_and_not_widen(tenant, member, now, bound, narrower, wider):
    bound, narrower, wider = (
        {name: now + timedelta(seconds=at) if isinstance(at, int) else at for name, at in values.items()}
        for values in (bound, narrower, wider)
    )
    admin = factories.make_member(tenant, Role.ADMIN)
    issued, _ = issue(admin, tenant, member, now, **bound)
    changed, _ = issue(member, tenant, member, now)
    services.change_key(actor=viewer_of(admin), key=changed, changes=bound, now=now)
    for key in (issued, changed):
        (field,) = bound
        services.change_key(actor=viewer_of(member), key=key, changes={"name": "other", **narrower}, now=now)
        with pytest.raises(Invalid) as refused:
            services.change_key(actor=viewer_of(member), key=key, changes=wider, now=now)
        assert [(error.field, error.code) for error in refused.value.errors] == [(field, "wider_than_set")]
        # Back to what was set, or further where the one who may says so.
        services.change_key(actor=viewer_of(member), key=key, changes=bound, now=now)
        services.change_key(actor=viewer_of(admin), key=key, changes=wider, now=now)
        services.change_key(actor=viewer_of(member), key=key, changes=wider, now=now)


def test_what_a_member_set_of_their_own_key_they_may_lift(tenant, member, now):
    limits = {"allowed_models": ["a"], "allowed_addresses": ["10.0.0.0/8"], "expires_at": now + timedelta(1)}
    key, _ = issue(member, tenant, member, now, **limits)
    lifted = services.change_key(
        actor=viewer_of(member), key=key, changes=dict.fromkeys(limits) | {"scopes": ["pin"]}, now=now
    )
    assert (lifted.allowed_models, lifted.allowed_addresses, lifted.expires_at) == (None, None, None)
    assert lifted.scopes == ["pin"]


def test_who_may_change_which_keys(tenant, member, now):
    mine, _ = issue(member, tenant, member, now)
    onlooker = factories.make_member(tenant, Role.VIEWER)
    for actor, kind in ((onlooker, Forbidden), (factories.make_member(tenant), NotFound)):
        with pytest.raises(kind):
            services.change_key(actor=viewer_of(actor), key=mine, changes={"name": "x"}, now=now)


def test_limits_and_overlap_over_the_api(api_client, tenant, member):
    client = api_client(member)
    made = client.post("/api/v1/api-keys", {"name": "k", "scopes": ["inference"]}).json()
    assert (made["scopes"], made["allowed_addresses"], made["former_until"]) == (["inference"], None, None)
    path = f"/api/v1/api-keys/{made['id']}"
    changed = client.patch(path, {"allowed_addresses": ["192.0.2.7"], "allowed_models": None})
    assert changed.status_code == 200
    assert changed.json()["allowed_addresses"] == ["192.0.2.7/32"]
    assert "key" not in changed.json()
    turned = client.post(f"{path}/rotate", {"overlap_seconds": 600}).json()
    assert turned["former_prefix"] == made["prefix"] and turned["former_until"]
    refused = client.patch(path, {"scopes": ["all"], "member": "x"}).json()
    assert {(e["field"], e["code"]) for e in refused["errors"]} == {("member", "unknown_field")}
    assert client.post(f"{path}/rotate", {"overlap_seconds": 10**9}).status_code == 400
