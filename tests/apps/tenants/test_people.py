"""People (TEN-10): invitations, new passwords, sessions that end at once, language and time zone."""

import re
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.conf import settings
from django.core import mail
from django.test import Client
from rest_framework.test import APIClient

from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.models import AuditEntry
from apps.tenants import services
from apps.tenants.models import ApiKey, Membership, OneTimeLink, Role, SignedIn, User
from apps.tenants.scope import viewer_of
from tests import factories
from tests.apps.core.threads import run_at_once

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-10")]

NEW = "quite-another-passphrase"


@pytest.fixture
def owner(tenant):
    return factories.make_member(tenant, Role.OWNER)


def program(username, password=factories.PASSWORD):
    """A program that signs in: its client, and the refresh token."""
    client = APIClient(raise_request_exception=False)
    client.default_format = "json"
    tokens = client.post("/api/v1/auth/token", {"username": username, "password": password})
    assert tokens.status_code == 200, tokens.content
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {tokens.json()['access']}")
    return client, tokens.json()["refresh"]


def browser(username, password=factories.PASSWORD):
    client = Client(raise_request_exception=False)
    answer = client.post("/sign-in/", {"username": username, "password": password})
    assert answer.status_code == 302, answer.content
    return client


def invited(api_client, by, tenant, role="member", **more):
    answer = api_client(by).post(f"/api/v1/tenants/{tenant.public_id}/invitations", {"role": role, **more})
    assert answer.status_code == 201, answer.json()
    return answer.json()


def accept(token, username="newcomer", password=NEW):
    client = APIClient(raise_request_exception=False)
    return client.post(
        "/api/v1/auth/invitation",
        {"token": token, "username": username, "password": password},
        format="json",
    )


# --- invitations ----------------------------------------------------------------------------------


def test_an_invited_person_takes_name_and_password_and_is_a_member(api_client, tenant, owner):
    made = invited(api_client, owner, tenant, role="admin", email="new@example.org")
    assert made["link"] == f"{settings.PUBLIC_URL}/join/#{made['token']}" and made["mailed"] is None
    assert made["token"] not in str(list(OneTimeLink.objects.values()))
    answer = accept(made["token"])
    assert answer.status_code == 201 and answer.json()["username"] == "newcomer"
    member = Membership.objects.get(user__username="newcomer")
    assert (member.tenant, member.role, member.user.email) == (tenant, "admin", "new@example.org")
    client, _ = program("newcomer", NEW)
    assert client.get("/api/v1/me").json()["memberships"][0]["role"] == "admin"
    verbs = set(AuditEntry.objects.values_list("verb", flat=True))
    assert {"invite", "create_user", "add_member", "accept_invitation"} <= verbs
    assert made["token"] not in str(list(AuditEntry.objects.values()))


def test_a_link_works_once_and_not_after_a_refusal_it_caused_nothing(api_client, tenant, owner):
    token = invited(api_client, owner, tenant)["token"]
    weak = accept(token, password="password")
    assert (weak.status_code, weak.json()["errors"][0]["field"]) == (400, "password")
    assert accept(token, username=owner.username).status_code == 409
    assert accept(token).status_code == 201
    again = accept(token, username="another")
    assert (again.status_code, again.json()["code"]) == (404, "link_unknown")


@pytest.mark.django_db(transaction=True)
def test_two_who_take_one_invitation_at_once_are_one_member(api_client, tenant, owner):
    token = invited(api_client, owner, tenant)["token"]

    def take(number):
        try:
            return services.accept_invitation(
                token=token, username=f"taker-{number}", password=NEW, now=utc_now()
            )
        except Refusal as refusal:
            return refusal.code

    results = run_at_once(2, take)
    assert results.count("link_unknown") == 1
    assert User.objects.filter(username__startswith="taker-").count() == 1


@pytest.mark.parametrize(
    "end", ["withdrawn", "expired", "inviter_removed", "inviter_demoted", "inviter_closed"]
)
def test_a_link_ends_with_its_term_its_withdrawal_and_its_makers_right(
    api_client, tenant, owner, operator, end
):
    admin = factories.make_member(tenant, Role.ADMIN)
    made = invited(api_client, admin, tenant)
    members = f"/api/v1/tenants/{tenant.public_id}/members/{admin.public_id}"
    if end == "withdrawn":
        path = f"/api/v1/tenants/{tenant.public_id}/invitations/{made['id']}"
        assert api_client(owner).delete(path).status_code == 204
        assert api_client(owner).delete(path).status_code == 404
    elif end == "expired":
        OneTimeLink.objects.update(expires_at=utc_now() - timedelta(seconds=1))
    elif end == "inviter_removed":
        assert api_client(owner).delete(members).status_code == 204
    elif end == "inviter_demoted":
        assert api_client(owner).patch(members, {"role": "member"}).status_code == 200
    else:
        services.set_active(actor=viewer_of(operator), user=admin, active=False)
    assert accept(made["token"]).status_code == 404
    assert not User.objects.filter(username="newcomer").exists()


def test_nobody_invites_above_their_own_role_and_members_invite_nobody(api_client, tenant, member):
    admin = factories.make_member(tenant, Role.ADMIN)
    path = f"/api/v1/tenants/{tenant.public_id}/invitations"
    above = api_client(admin).post(path, {"role": "owner"})
    assert (above.status_code, above.json()["errors"][0]["code"]) == (400, "role_above_own")
    assert api_client(member).post(path, {"role": "viewer"}).status_code == 403
    assert api_client(member).get(path).status_code == 403
    assert api_client(admin).get(path).json()["total"] == 0


def test_mail_goes_out_only_where_it_is_configured(api_client, tenant, owner, settings):
    settings.EMAIL_URL = "smtp://localhost"
    made = invited(api_client, owner, tenant, email="new@example.org")
    assert made["mailed"] is True
    assert made["link"] in mail.outbox[0].body and mail.outbox[0].to == ["new@example.org"]
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    assert invited(api_client, owner, tenant, email="b@example.org")["mailed"] is False


def test_who_has_an_account_joins_as_themselves_on_the_page(api_client, tenant, owner):
    token = invited(api_client, owner, tenant)["token"]
    person = factories.make_user()
    client = browser(person.username)
    assert b"data-from-address" in client.get("/join/").content
    assert client.post("/join/", {"token": token}).status_code == 302
    assert Membership.objects.get(user=person).tenant == tenant


# --- passwords ------------------------------------------------------------------------------------


def test_an_owner_resets_by_a_link_which_ends_every_session(api_client, tenant, owner, member):
    client, refresh = program(member.username)
    offered = api_client(owner).post(f"/api/v1/users/{member.public_id}/password-reset")
    assert offered.status_code == 201, offered.json()
    token = offered.json()["token"]
    assert client.get("/api/v1/me").status_code == 200  # a link alone ends nothing
    anybody = APIClient()
    done = anybody.post("/api/v1/auth/password-reset", {"token": token, "password": NEW}, format="json")
    assert done.status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert client.post("/api/v1/auth/token/refresh", {"refresh": refresh}).status_code == 401
    program(member.username, NEW)
    again = anybody.post("/api/v1/auth/password-reset", {"token": token, "password": "x" * 20}, format="json")
    assert again.status_code == 404


def test_a_newer_reset_link_ends_the_one_before(api_client, operator, member):
    path = f"/api/v1/users/{member.public_id}/password-reset"
    first, second = (api_client(operator).post(path).json()["token"] for _ in range(2))
    for token, status in ((first, 404), (second, 204)):
        body = {"token": token, "password": NEW}
        assert APIClient().post("/api/v1/auth/password-reset", body, format="json").status_code == status


@pytest.mark.parametrize("change", ["joins another tenant", "becomes an operator", "its maker leaves"])
def test_a_reset_link_ends_with_its_makers_right(api_client, tenant, owner, member, change):
    offered = api_client(owner).post(f"/api/v1/users/{member.public_id}/password-reset")
    token = re.search(r"ln-[\w-]+", str(offered.json()))[0]
    if change == "joins another tenant":
        factories.make_member(factories.make_tenant(), user=member)
    elif change == "becomes an operator":
        User.objects.filter(pk=member.pk).update(is_superuser=True)
    else:
        Membership.objects.filter(user=owner).delete()
    body = {"token": token, "password": NEW}
    refused = APIClient().post("/api/v1/auth/password-reset", body, format="json")
    assert (refused.status_code, refused.json()["code"]) == (404, "link_unknown")
    member.refresh_from_db()
    assert not member.check_password(NEW)


def test_an_owner_can_not_reset_who_opens_more_than_the_owners_tenants(api_client, tenant, owner, operator):
    shared = factories.make_member(tenant)
    factories.make_member(factories.make_tenant(), user=shared)
    factories.make_member(tenant, user=operator)
    admin = factories.make_member(tenant, Role.ADMIN)
    for person in (shared, operator):
        refused = api_client(owner).post(f"/api/v1/users/{person.public_id}/password-reset")
        assert (refused.status_code, refused.json()["code"]) == (403, "reset_by_operator_only")
    # an admin would gain the owner's role by it
    refused = api_client(admin).post(f"/api/v1/users/{owner.public_id}/password-reset")
    assert refused.status_code == 403
    assert not OneTimeLink.objects.exists()


def test_changing_ones_password_keeps_this_browser_and_ends_the_rest(member):
    here, there = browser(member.username), browser(member.username)
    client, _ = program(member.username)
    wrong = here.post("/account/password/", {"old_password": "wrong", "password": NEW})
    assert wrong.status_code == 200 and b"is not your present password" in wrong.content
    done = here.post("/account/password/", {"old_password": factories.PASSWORD, "password": NEW})
    assert done.status_code == 302
    assert here.get("/account/").status_code == 200
    assert there.get("/account/").status_code == 302
    assert client.get("/api/v1/me").status_code == 401
    assert [row.way for row in SignedIn.objects.filter(ended_at__isnull=True)] == ["web"]


def test_guessing_the_present_password_is_slowed_as_at_the_door(api_client, member):
    client, _ = program(member.username)
    codes = [
        client.post("/api/v1/me/password", {"old_password": f"guess-{n}", "password": NEW}).status_code
        for n in range(settings.AXES_FAILURE_LIMIT + 1)
    ]
    assert codes[0] == 400 and codes[-1] == 429


def test_the_console_ends_sessions_with_a_new_password(operator, member):
    console, client = Client(), program(member.username)[0]
    console.force_login(operator)
    page = f"/admin/tenants/user/{member.pk}/password/"
    body = {"usable_password": "true", "password1": NEW, "password2": NEW}
    assert console.post(page, body).status_code == 302
    assert client.get("/api/v1/me").status_code == 401
    assert AuditEntry.objects.filter(verb="set_password", object_id=member.public_id).count() == 1


# --- sessions -------------------------------------------------------------------------------------


def test_sessions_are_listed_with_where_from_and_when(member):
    page = Client(headers={"user-agent": "A browser"}, REMOTE_ADDR="192.0.2.5")
    page.post("/sign-in/", {"username": member.username, "password": factories.PASSWORD})
    client, _ = program(member.username)
    items = client.get("/api/v1/sessions").json()["items"]
    shown = {(item["way"], item["agent"], item["address"], item["current"]) for item in items}
    assert shown == {("web", "A browser", "192.0.2.5", False), ("api", "", "127.0.0.1", True)}
    assert page.session.session_key not in str(items)


def test_an_ended_session_ends_at_once_with_its_tokens(member):
    page, (client, refresh) = browser(member.username), program(member.username)
    other, _ = program(member.username)
    ids = {item["way"]: item["id"] for item in client.get("/api/v1/sessions").json()["items"]}
    mine = next(i["id"] for i in client.get("/api/v1/sessions").json()["items"] if i["current"])
    assert other.delete(f"/api/v1/sessions/{ids['web']}").status_code == 204
    assert page.get("/account/").status_code == 302
    assert other.delete(f"/api/v1/sessions/{mine}").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert other.post("/api/v1/auth/token/refresh", {"refresh": refresh}).status_code == 401
    assert other.get("/api/v1/me").status_code == 200
    assert other.delete(f"/api/v1/sessions/{mine}").status_code == 204  # repeatable
    assert AuditEntry.objects.filter(verb="end_session").count() == 2


def test_end_all_others(member):
    page, (client, _) = browser(member.username), program(member.username)
    assert client.post("/api/v1/sessions/end-others").json() == {"ended": 1}
    assert page.get("/account/").status_code == 302
    assert client.get("/api/v1/me").status_code == 200


def test_an_operator_sees_and_ends_anybodys_others_only_their_own(api_client, operator, owner, member):
    client, _ = program(member.username)
    path = f"/api/v1/sessions?user={member.public_id}"
    assert api_client(owner).get(path).status_code == 404
    found = api_client(operator).get(path).json()["items"]
    assert len(found) == 1
    assert api_client(owner).delete(f"/api/v1/sessions/{found[0]['id']}").status_code == 404
    assert api_client(operator).delete(f"/api/v1/sessions/{found[0]['id']}").status_code == 204
    assert client.get("/api/v1/me").status_code == 401


def test_signing_out_ends_browser_and_tokens_and_is_on_record(member):
    page, (client, refresh) = browser(member.username), program(member.username)
    page.post("/sign-out/")
    assert client.post("/api/v1/auth/session/end").status_code == 204
    assert client.get("/api/v1/me").status_code == 401
    assert client.post("/api/v1/auth/token/refresh", {"refresh": refresh}).status_code == 401
    assert not SignedIn.objects.filter(ended_at__isnull=True).exists()
    assert AuditEntry.objects.filter(verb="sign_out").count() == 1


@pytest.mark.req("TEN-08")
def test_sign_in_failure_and_lock_out_are_on_record_at_every_door(member, operator):
    for path in ("/sign-in/", "/admin/login/"):
        Client().post(path, {"username": operator.username, "password": "wrong"})
        Client().post(path, {"username": operator.username, "password": factories.PASSWORD})
    rows = AuditEntry.objects.order_by("pk").values_list("verb", "actor", "after")
    assert [row[0] for row in rows] == ["fail_sign_in", "sign_in"] * 2
    assert {row[1] for row in rows} == {operator.username}
    for _ in range(settings.AXES_FAILURE_LIMIT + 5):
        Client().post("/sign-in/", {"username": member.username, "password": "wrong"})
    assert AuditEntry.objects.filter(verb="lock_sign_in", actor=member.username).count() == 1
    assert "wrong" not in re.sub("sign_in", "", str(list(AuditEntry.objects.values("before", "after"))))


# --- profile --------------------------------------------------------------------------------------


def test_language_and_time_zone_are_kept_and_used(member):
    page = browser(member.username)
    saved = page.post("/account/profile/", {"language": "zh-hans", "time_zone": "Asia/Shanghai"})
    assert saved.status_code == 302
    member.refresh_from_db()
    assert (member.language, member.time_zone) == ("zh-hans", "Asia/Shanghai")
    elsewhere = browser(member.username)
    answer = elsewhere.get("/account/", headers={"accept-language": "en"})
    assert answer.headers["Content-Language"] == "zh-hans"
    began = SignedIn.objects.latest("pk").created_at.astimezone(ZoneInfo("Asia/Shanghai"))
    assert f">{began:%Y-%m-%d %H:%M}<" in answer.content.decode()  # as clocks in Shanghai have it
    client, _ = program(member.username)
    refused = client.get("/api/v1/tenants/ten-aaaaaaaaaaaaaaaa")
    assert not refused.json()["detail"].isascii()


def test_the_language_switch_saves_the_choice(member):
    page = browser(member.username)
    page.post("/i18n/setlang/", {"language": "zh-hans", "next": "/usage/"})
    member.refresh_from_db()
    assert member.language == "zh-hans"
    assert page.get("/usage/").headers["Content-Language"] == "zh-hans"


def test_what_is_no_language_and_no_time_zone_is_refused_by_field(api_client, member):
    answer = api_client(member).patch("/api/v1/me", {"language": "tlh", "time_zone": "Moon/Base"})
    errors = {error["field"]: error["code"] for error in answer.json()["errors"]}
    assert (answer.status_code, errors) == (400, {"language": "not_a_choice", "time_zone": "bad_time_zone"})
    assert api_client(member).patch("/api/v1/me", {"time_zone": "Europe/Berlin"}).status_code == 200


# --- pages ----------------------------------------------------------------------------------------


def test_owners_manage_members_on_the_page(tenant, owner, member):
    page = browser(owner.username)
    shown = page.post(f"/members/?tenant={tenant.slug}", {"role": "member", "email": ""})
    link = re.search(r"/join/#(ln-[\w-]+)", shown.content.decode())
    assert link and accept(link[1]).status_code == 201
    here = {"tenant": tenant.slug}
    assert page.post(f"/members/{member.public_id}/role/", {**here, "role": "viewer"}).status_code == 302
    assert Membership.objects.get(user=member).role == "viewer"
    reset = page.post(f"/members/{member.public_id}/new-password/", here)
    token = re.search(r"/new-password/#(ln-[\w-]+)", reset.content.decode())[1]
    assert Client().post("/new-password/", {"token": token, "password": NEW}).status_code == 302
    factories.make_key(tenant, member)
    assert page.post(f"/members/{member.public_id}/remove/", here).status_code == 302
    assert not ApiKey.objects.filter(member=member, revoked_at__isnull=True).exists()
    invitation = factories.make_invitation(tenant, owner)
    assert page.post(f"/invitations/{invitation.public_id}/withdraw/").status_code == 302
    assert page.get("/members/").status_code == page.get("/audit/").status_code == 200


def test_members_have_no_members_page_and_no_audit(member):
    page = browser(member.username)
    assert page.get("/members/").status_code == page.get("/audit/").status_code == 403
    text = page.get("/account/").content.decode()
    assert "/members/" not in text and "/audit/" not in text
