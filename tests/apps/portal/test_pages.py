"""What all portal pages share: sign-in, headers, error pages, languages; keys, usage, playground."""

import json
import re
from datetime import timedelta

import pytest
from django.conf import settings
from django.test import Client, RequestFactory
from django.urls import get_resolver, reverse

from apps.core.clock import utc_now
from apps.core.scopes import PUBLIC, scope_of
from apps.portal.views import handler404, handler500
from apps.tenants.models import ApiKey, Role, Tenant, User
from apps.usage.models import UsageRecord
from tests import factories
from tests.apps.portal.conftest import browser

PORTAL = [p for p in get_resolver("apps.portal.urls").url_patterns]
SIGN_IN = reverse("portal:sign_in")
KEYS = reverse("portal:keys")


def path_of(pattern: object) -> str:
    name = f"portal:{pattern.name}"  # type: ignore[attr-defined]
    arguments = ["tg-aaaaaaaaaaaaaaaa"] if pattern.pattern.converters else []  # type: ignore[attr-defined]
    return reverse(name, args=arguments)


@pytest.mark.parametrize("pattern", PORTAL, ids=[p.name for p in PORTAL])
def test_every_page_declares_a_scope_asks_to_sign_in_and_has_a_strict_policy(
    pattern: object, db: None
) -> None:
    scope = scope_of(pattern.callback)  # type: ignore[attr-defined]
    assert scope is not None
    answer = browser().get(path_of(pattern))
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "no-store" in answer["Cache-Control"]
    if scope != PUBLIC:
        assert answer.status_code == 302
        assert answer["Location"].startswith(SIGN_IN)


def test_pages_have_no_inline_script_or_style(page: Client, service: object) -> None:
    from apps.workloads.models import TaskGroup

    paths = [path_of(p) for p in PORTAL if not p.pattern.converters and p.name not in ("sign_out",)]
    paths.append(reverse("portal:service", args=[TaskGroup.objects.get().public_id]))
    for path in paths:
        text = page.get(path).content.decode()
        for tag in re.findall(r"<script[^>]*>", text):
            assert "src=" in tag or 'type="application/json"' in tag, (path, tag)
        assert not re.search(r"<[^>]+\s(style|on\w+)=", text), path


def test_polling_without_a_session_sends_the_whole_page_to_sign_in(db: None) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/services/"}
    answer = browser().get(reverse("portal:services"), headers=headers)
    assert answer.status_code == 401
    assert answer["HX-Redirect"] == f"{SIGN_IN}?next=/services/"


@pytest.mark.req("TEN-05")
def test_sign_in_and_out(member: User) -> None:
    client = browser()
    wrong = client.post(SIGN_IN, {"username": member.username, "password": "wrong"})
    assert "do not match" in wrong.content.decode()
    form = {"username": member.username, "password": factories.PASSWORD, "next": KEYS}
    assert client.post(SIGN_IN, form)["Location"] == KEYS
    assert client.get(KEYS).status_code == 200
    client.post(reverse("portal:sign_out"))
    assert client.get(KEYS).status_code == 302


def test_sign_in_leads_nowhere_else(member: User) -> None:
    form = {"username": member.username, "password": factories.PASSWORD, "next": "https://evil.example/"}
    assert browser().post(SIGN_IN, form)["Location"] == reverse("portal:services")


@pytest.mark.req("TEN-05")
def test_guessing_is_slowed_and_said_on_the_page(member: User) -> None:
    client = browser()
    for _ in range(settings.AXES_FAILURE_LIMIT):
        answer = client.post(SIGN_IN, {"username": member.username, "password": "wrong"})
    assert answer.status_code == 429
    assert "Too many failed attempts" in answer.content.decode()
    assert "</html>" in answer.content.decode()
    right = client.post(SIGN_IN, {"username": member.username, "password": factories.PASSWORD})
    assert right.status_code == 429


@pytest.mark.req("TEN-06")
def test_a_key_is_shown_in_one_answer_and_nowhere_else(page: Client, tenant: Tenant) -> None:
    made = page.post(KEYS, {"name": "laptop", "allowed_models": "a, b"}, headers={"HX-Request": "true"})
    plain = re.search(r"sk-[0-9a-f-]{36}", made.content.decode())
    assert plain is not None
    key = ApiKey.objects.get(name="laptop")
    assert key.allowed_models == ["a", "b"]
    later = page.get(KEYS).content.decode()
    assert key.prefix in later
    assert plain.group() not in later
    assert not any(plain.group() in str(value) for value in page.session.values())


def test_rotate_and_revoke(page: Client, tenant: Tenant, member: User) -> None:
    key, old = factories.make_key(tenant, member)
    rotated = page.post(reverse("portal:key_rotate", args=[key.public_id])).content.decode()
    assert re.search(r"sk-[0-9a-f-]{36}", rotated)
    assert old not in rotated
    assert page.post(reverse("portal:key_revoke", args=[key.public_id])).status_code == 302
    key.refresh_from_db()
    assert key.revoked_at is not None
    again = page.post(reverse("portal:key_rotate", args=[key.public_id]))
    assert again.status_code == 409
    assert "issue a new one" in again.content.decode()


@pytest.mark.req("TEN-04")
def test_a_strangers_key_is_not_there(page: Client) -> None:
    key, _plain = factories.make_key()
    assert page.post(reverse("portal:key_revoke", args=[key.public_id])).status_code == 404
    key.refresh_from_db()
    assert key.revoked_at is None


def test_a_viewer_is_told_that_they_may_not_issue(tenant: Tenant) -> None:
    text = browser(factories.make_member(tenant, Role.VIEWER)).post(KEYS, {"name": "x"}).content.decode()
    assert "Your role does not allow this." in text


def use(tenant: Tenant, member: User, **fields: object) -> None:
    values = {
        "request_id": factories.unique("r"),
        "started_at": utc_now(),
        "path": "/v1/chat/completions",
        "ending": "completed",
        "http_status": 200,
        "tenant_id": tenant.public_id,
        "member": member.username,
        "model": "tiny-model",
        **fields,
    }
    UsageRecord.objects.create(**values)


def test_usage_sums_by_model_of_today_and_of_this_tenant(page: Client, tenant: Tenant, member: User) -> None:
    use(tenant, member, prompt_tokens=10, completion_tokens=5)
    use(tenant, member, prompt_tokens=1, completion_tokens=2, ending="client_gone")
    use(tenant, member, started_at=utc_now() - timedelta(days=2), prompt_tokens=900)
    use(tenant, factories.make_member(tenant), prompt_tokens=700)  # a colleague's
    use(factories.make_tenant(), member, prompt_tokens=800)
    today = utc_now().date().isoformat()
    shown = page.get(reverse("portal:usage"), {"from": today, "to": today}).context["usage"]
    (only,) = [line.use for line in shown["lines"]]
    assert (only.requests, only.failed, only.prompt_tokens, only.completion_tokens) == (2, 1, 11, 7)


def test_usage_of_nothing_is_said_not_counted(page: Client) -> None:
    assert "No request in these days" in page.get(reverse("portal:usage")).content.decode()


def test_an_owner_sees_the_usage_of_all(tenant: Tenant, member: User) -> None:
    use(tenant, member, prompt_tokens=10)
    owner = browser(factories.make_member(tenant, Role.OWNER))
    assert owner.get(reverse("portal:usage")).context["usage"]["whole"].prompt_tokens == 10


def test_playground_offers_models_and_a_short_lived_key(page: Client, service: object) -> None:
    text = page.get(reverse("portal:playground")).content.decode()
    assert '<option value="tiny-model" selected>' in text
    answer = page.post(reverse("portal:playground_key"))
    made = json.loads(answer.content)
    key = ApiKey.objects.get(prefix=made["prefix"])
    left = key.expires_at - utc_now()
    assert timedelta() < left <= timedelta(seconds=settings.PLAYGROUND_KEY_TTL_S)
    assert "no-store" in answer["Cache-Control"]


def test_playground_key_refusal_is_a_problem(db: None) -> None:
    answer = browser(factories.make_user()).post(reverse("portal:playground_key"))
    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid"


def test_unknown_addresses_answer_people_and_programs_each_in_their_way(db: None) -> None:
    page = browser().get("/no/such/page")
    assert page.status_code == 404
    assert "There is nothing here" in page.content.decode()
    problem = browser().get("/api/v1/no-such-thing")
    assert problem.status_code == 404
    assert problem.json()["code"] == "no_such_address"


def test_error_page_reads_no_row() -> None:
    # Without the database fixture every query would raise.
    answer = handler500(RequestFactory().get("/services/"))
    assert answer.status_code == 500
    assert "Something went wrong" in answer.content.decode()
    assert handler500(RequestFactory().get("/api/v1/x"))["Content-Type"] == "application/json"
    assert handler404(RequestFactory().get("/v1/x"), Exception())["Content-Type"] == "application/json"


def test_language_switch(page: Client) -> None:
    page.post(reverse("set_language"), {"language": "zh-hans", "next": "/services/"})
    text = page.get(reverse("portal:services")).content.decode()
    assert '<html lang="zh-hans">' in text
    assert "服务" in text
