"""No secret in any log line, whatever the level: a whole flow with known secrets (OPS-08, TEN-06)."""

import logging

import pytest
from django.test import Client
from rest_framework.test import APIClient

from tests import factories

PASSWORD = "a-password-nobody-logs-1"


@pytest.mark.django_db
@pytest.mark.req("OPS-08", "TEN-06")
def test_sign_in_keys_and_mistakes_leave_no_secret_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    tenant = factories.make_tenant()
    user = factories.make_user(password=PASSWORD)
    factories.make_member(tenant, user=user)
    client = APIClient(raise_request_exception=False)
    client.default_format = "json"
    signed = client.post("/api/v1/auth/token", {"username": user.username, "password": PASSWORD})
    assert signed.status_code == 200
    access, refresh = signed.json()["access"], signed.json()["refresh"]
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {access}")
    issued = client.post("/api/v1/api-keys", {"name": "one"})
    assert issued.status_code == 201
    key = issued.json()["key"]
    rotated = client.post(f"/api/v1/api-keys/{issued.json()['id']}/rotate")
    assert rotated.status_code == 200
    wrong = "a-wrong-password-nobody-logs"
    assert (
        client.post("/api/v1/auth/token", {"username": user.username, "password": wrong}).status_code == 401
    )
    client.post("/api/v1/api-keys", {"name": "two", "key": key})
    client.post("/api/v1/auth/token", data=f'{{"password": "{PASSWORD}"', content_type="application/json")
    client.post("/api/v1/task-groups", {"name": "x", "task": {"pull_credentials": {"password": PASSWORD}}})
    Client().get("/", headers={"authorization": f"Bearer {key}"})
    Client(raise_request_exception=False).post("/agent/v1/join", data="{}", content_type="application/json")

    written = "\n".join(f"{record.getMessage()} {record.exc_text or ''}" for record in caplog.records)
    assert caplog.records
    for secret in (PASSWORD, wrong, access, refresh, key, rotated.json()["key"]):
        assert secret not in written
