"""Sign-in by real requests: tokens, sessions, and guessing that is slowed for both."""

import time

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone
from rest_framework.test import APIClient
from rest_framework_simplejwt.tokens import AccessToken, RefreshToken

from apps.tenants.guessing import failures_from
from apps.tenants.models import User
from tests import factories

pytestmark = [pytest.mark.django_db, pytest.mark.req("TEN-05")]

TOKEN = "/api/v1/auth/token"


@pytest.fixture
def client():
    client = APIClient(raise_request_exception=False)
    client.default_format = "json"
    return client


def sign_in(client, username, password=factories.PASSWORD, **extra):
    return client.post(TOKEN, {"username": username, "password": password}, **extra)


def test_a_token_opens_the_api_and_is_renewed(client, member):
    answer = sign_in(client, member.username)
    assert answer.status_code == 200 and answer["Cache-Control"] == "no-store"
    me = client.get("/api/v1/me", HTTP_AUTHORIZATION=f"Bearer {answer.json()['access']}")
    assert me.json()["username"] == member.username
    fresh = client.post(f"{TOKEN}/refresh", {"refresh": answer.json()["refresh"]})
    assert client.get("/api/v1/me", HTTP_AUTHORIZATION=f"Bearer {fresh.json()['access']}").status_code == 200


def test_what_is_no_valid_token_is_401_in_one_shape(client, member):
    refresh = RefreshToken.for_user(member)
    old = AccessToken(sign_in(client, member.username).json()["access"])
    old.set_exp(from_time=timezone.now(), lifetime=-timezone.timedelta(seconds=3600))
    bodies = []
    for header in (None, "Bearer x", "Bearer a b", f"Bearer {refresh}", f"Bearer {old}", "Bearer sk-1"):
        headers = {"HTTP_AUTHORIZATION": header} if header else {}
        answer = client.get("/api/v1/me", **headers)
        assert answer.status_code == 401 and answer["WWW-Authenticate"].startswith("Bearer")
        bodies.append({**answer.json(), "request_id": ""})
    assert all(body == bodies[0] for body in bodies) and bodies[0]["code"] == "not_signed_in"


@pytest.mark.req("TEN-05")
def test_a_token_bears_a_minute_of_skew(client, member):
    ahead = AccessToken(sign_in(client, member.username).json()["access"])
    ahead.set_exp(from_time=timezone.now(), lifetime=-timezone.timedelta(seconds=30))
    assert client.get("/api/v1/me", HTTP_AUTHORIZATION=f"Bearer {ahead}").status_code == 200


def test_tokens_of_who_is_gone_or_inactive_end(client, member):
    tokens = sign_in(client, member.username).json()
    User.objects.filter(pk=member.pk).update(is_active=False)
    header = {"HTTP_AUTHORIZATION": f"Bearer {tokens['access']}"}
    assert client.get("/api/v1/me", **header).status_code == 401
    assert client.post(f"{TOKEN}/refresh", {"refresh": tokens["refresh"]}).status_code == 401
    User.objects.filter(pk=member.pk).delete()
    assert client.get("/api/v1/me", **header).status_code == 401
    assert client.post(f"{TOKEN}/refresh", {"refresh": tokens["refresh"]}).status_code == 401


def test_a_new_password_ends_the_tokens_of_before(client, member):
    tokens = sign_in(client, member.username).json()
    member.set_password("another-long-one")
    member.save()
    assert client.get("/api/v1/me", HTTP_AUTHORIZATION=f"Bearer {tokens['access']}").status_code == 401
    answer = client.post(f"{TOKEN}/refresh", {"refresh": tokens["refresh"]})
    assert answer.status_code == 401 and answer.json()["code"] == "not_signed_in"
    fresh = sign_in(client, member.username, "another-long-one").json()
    assert client.post(f"{TOKEN}/refresh", {"refresh": fresh["refresh"]}).status_code == 200


@pytest.mark.parametrize("path", [TOKEN, "/api/v1/auth/session"])
def test_unknown_wrong_and_inactive_are_one_answer(path, client, member):
    factories.make_user("asleep", is_active=False)
    bodies = []
    for name, password in ((member.username, "wrong"), ("nobody", "wrong"), ("asleep", factories.PASSWORD)):
        answer = client.post(path, {"username": name, "password": password})
        assert answer.status_code == 401
        bodies.append({**answer.json(), "request_id": ""})
    assert all(body == bodies[0] for body in bodies) and bodies[0]["code"] == "sign_in_failed"


def test_an_unknown_name_takes_as_long_as_a_wrong_password(client, settings):
    # The hasher of production: the test one is too quick to tell.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    settings.AXES_FAILURE_LIMIT = 1000
    assert PBKDF2PasswordHasher.iterations > 100_000
    factories.make_user("known")

    def shortest(name):
        taken = []
        for _ in range(3):
            begin = time.process_time()
            assert sign_in(client, name, "wrong").status_code == 401
            taken.append(time.process_time() - begin)
        return min(taken)

    known, unknown = shortest("known"), shortest("unknown")
    assert 0.5 < known / unknown < 2


@pytest.mark.parametrize("name_is_known", [True, False])
def test_guessing_is_locked_out_for_both_ways_in_alike(name_is_known, client, settings, member):
    name = member.username if name_is_known else "nobody-here"
    answers = [sign_in(client, name, f"guess-{n}") for n in range(settings.AXES_FAILURE_LIMIT)]
    assert {a.status_code for a in answers[:-1]} == {401}
    for answer in (answers[-1], sign_in(client, name, factories.PASSWORD)):
        assert answer.status_code == 429
        assert answer.json()["code"] == "sign_in_locked"
        assert answer["Retry-After"] == "300" and "300" in answer.json()["detail"]
    session = client.post("/api/v1/auth/session", {"username": name, "password": factories.PASSWORD})
    assert session.status_code == 429 and session.json()["code"] == "sign_in_locked"
    page = Client().post(reverse("admin:login"), {"username": name, "password": factories.PASSWORD})
    assert page.status_code == 429 and page["Retry-After"] == "300"


def test_a_lock_out_is_for_one_name_from_one_address(client, settings, member):
    for n in range(settings.AXES_FAILURE_LIMIT):
        sign_in(client, member.username, f"guess-{n}")
    assert sign_in(client, member.username).status_code == 429
    assert sign_in(client, member.username, REMOTE_ADDR="10.9.8.7").status_code == 200
    other = factories.make_user()
    assert sign_in(client, other.username).status_code == 200


def test_many_names_from_one_address_are_locked_out_together(client, settings, member):
    settings.SIGN_IN_ADDRESS_FAILURE_LIMIT = 6
    answers = [sign_in(client, f"somebody-{n}", "guess") for n in range(6)]
    assert {answer.status_code for answer in answers} == {401}
    refused = sign_in(client, member.username)
    assert refused.status_code == 429 and refused.json()["code"] == "sign_in_locked"
    for way_in in (reverse("admin:login"), reverse("portal:sign_in")):
        page = Client().post(way_in, {"username": member.username, "password": factories.PASSWORD})
        assert page.status_code == 429
    assert failures_from("127.0.0.1") == 6  # what came while it was locked out doesn't prolong it
    assert sign_in(client, member.username, REMOTE_ADDR="10.9.8.7").status_code == 200


def test_an_address_may_try_again_after_the_wait(client, settings, member):
    settings.SIGN_IN_ADDRESS_FAILURE_LIMIT = 2
    for n in range(2):
        sign_in(client, f"somebody-{n}", "guess")
    assert sign_in(client, member.username).status_code == 429
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    assert sign_in(client, member.username).status_code == 200


def test_a_name_that_is_too_long_is_a_wrong_one(client):
    page = Client().post(reverse("portal:sign_in"), {"username": "x" * 5000, "password": "guess"})
    assert page.status_code == 401
    assert not AccessAttempt.objects.exists()


def test_a_success_forgives_earlier_failures(client, settings, member):
    for _ in range(3):
        for n in range(settings.AXES_FAILURE_LIMIT - 1):
            assert sign_in(client, member.username, f"guess-{n}").status_code == 401
        assert sign_in(client, member.username).status_code == 200


def test_a_session_opens_and_ends_and_its_writes_need_the_csrf_token(member, tenant):
    client = APIClient(enforce_csrf_checks=True, raise_request_exception=False)
    client.default_format = "json"
    opened = client.post(
        "/api/v1/auth/session", {"username": member.username, "password": factories.PASSWORD}
    )
    assert opened.json()["username"] == member.username
    assert client.get("/api/v1/me").status_code == 200
    assert client.post("/api/v1/api-keys", {"name": "k"}).status_code == 403
    token = {"HTTP_X_CSRFTOKEN": client.cookies["csrftoken"].value}
    assert client.post("/api/v1/api-keys", {"name": "k"}, **token).status_code == 201
    assert client.post("/api/v1/auth/session/end", **token).status_code == 204
    assert client.get("/api/v1/me").status_code == 401


@pytest.mark.req("TEN-06")
def test_no_password_reaches_a_log_or_a_row(client, member, caplog):

    caplog.set_level("DEBUG")
    secret = "correct-horse-battery"
    for _ in range(6):
        answer = sign_in(client, member.username, secret)
        assert secret not in answer.content.decode()
    client.post(f"/api/v1/auth/token?password={secret}", {"username": "x", "password": secret, "q": secret})
    assert secret not in caplog.text
    assert AccessAttempt.objects.exists()
    assert not [row for row in AccessAttempt.objects.values() if secret in str(row)]


@pytest.mark.django_db(transaction=True)
async def test_a_lock_out_answers_the_same_under_asgi(settings):
    client = AsyncClient()
    for n in range(settings.AXES_FAILURE_LIMIT + 1):
        answer = await client.post(
            TOKEN, {"username": "nobody", "password": f"guess-{n}"}, content_type="application/json"
        )
    assert answer.status_code == 429 and answer["Retry-After"] == "300"
    assert answer.json()["code"] == "sign_in_locked"
