"""Webhooks: signed, at least once, with back-off, and never where an operator did not mean (OPS-09)."""

import hashlib
import hmac
import json
import socket
from datetime import timedelta

import pytest
from django.db import connection

from apps.alerts import loop, sending, services
from apps.alerts.models import Alert, Delivery, Webhook
from apps.core import leases
from apps.core.errors import Conflict, Forbidden, Invalid
from apps.core.models import AuditEntry
from apps.tenants.scope import viewer_of
from tests import factories
from tests.apps.alerts.receiver import receiver
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09")]
SECRET = "a-long-enough-secret"


@pytest.fixture
def actor(operator):
    return viewer_of(operator)


@pytest.fixture
def there(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    with receiver() as running:
        yield running


def make(actor, url, **more):
    return services.create_webhook(actor=actor, name="pager", url=url, secret=SECRET, now=NOW, **more)


def deliver(now=NOW):
    held = leases.acquire(loop.NAME, "test", 30)
    assert held is not None
    try:
        return loop.deliver(held, now)
    finally:
        held.release()


def test_an_alert_is_told_when_it_opens_and_when_it_is_over(actor, there):
    make(actor, there.url)
    found = [services.Found("loop_late", "x", {"loop": "x", "period_s": 5})]
    services.settle_lasting(judged=["loop_late"], found=found, now=NOW)
    services.settle_lasting(judged=["loop_late"], found=found, now=NOW)
    services.settle_lasting(judged=["loop_late"], found=[], now=NOW)
    assert deliver() == {"delivered": 2, "failed": 0}
    assert deliver() == {"delivered": 0, "failed": 0}
    opened, closed = (json.loads(body) for _, body in there.got)
    assert (opened["event"], closed["event"]) == ("opened", "closed")
    assert opened["alert"]["text"].startswith("The loop x is late")
    assert opened["alert"]["severity"] == "critical"
    assert closed["alert"]["closed_at"] and opened["alert"]["id"] == closed["alert"]["id"]


def test_it_is_signed_with_its_time(actor, there):
    webhook = make(actor, there.url)
    row = services.send_test(actor=actor, webhook=webhook, now=NOW)
    deliver()
    headers, body = there.got[0]
    stamp = headers["X-HeteroFlow-Timestamp"]
    expected = hmac.new(SECRET.encode(), stamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    assert headers["X-HeteroFlow-Signature"] == f"sha256={expected}"
    assert stamp == str(int(NOW.timestamp()))
    assert headers["X-HeteroFlow-Delivery"] == row.public_id == json.loads(body)["id"]


def test_what_fails_is_sent_again_later_under_the_same_id(actor, there, settings):
    services.send_test(actor=actor, webhook=make(actor, there.url), now=NOW)
    there.status = 500
    assert deliver() == {"delivered": 0, "failed": 1}
    row = Delivery.objects.get()
    assert (row.attempts, row.last_status, row.last_error) == (1, 500, "webhook_refused")
    assert row.next_at == NOW + timedelta(seconds=settings.WEBHOOK_RETRY_S)
    assert deliver() == {"delivered": 0, "failed": 0}  # not due yet
    there.status = 200
    assert deliver(row.next_at) == {"delivered": 1, "failed": 0}
    row.refresh_from_db()
    assert (row.delivered_at, row.next_at, row.attempts) == (NOW + timedelta(seconds=5), None, 2)
    assert len({headers["X-HeteroFlow-Delivery"] for headers, _ in there.got}) == 1


def test_pauses_double_up_to_a_bound_and_end(actor, there, settings):
    assert [loop.back_off_s(n) for n in (1, 2, 3, 50)] == [5, 10, 20, settings.WEBHOOK_RETRY_MAX_S]
    services.send_test(actor=actor, webhook=make(actor, there.url), now=NOW)
    there.status = 503
    deliver(NOW + timedelta(seconds=settings.WEBHOOK_GIVE_UP_S))
    row = Delivery.objects.get()
    assert row.next_at is None and row.delivered_at is None


def test_one_that_fails_holds_up_no_other(actor, there):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead_port = closed.getsockname()[1]
    dead = services.create_webhook(
        actor=actor, name="dead", url=f"http://127.0.0.1:{dead_port}/", secret=SECRET, now=NOW
    )
    for _ in range(5):
        services.send_test(actor=actor, webhook=dead, now=NOW)
    services.send_test(actor=actor, webhook=make(actor, there.url), now=NOW)
    assert deliver() == {"delivered": 1, "failed": 1}
    assert set(Delivery.objects.filter(webhook=dead).values_list("attempts", flat=True)) == {0, 1}


def test_a_redirect_is_not_followed(actor, there):
    with receiver() as elsewhere:
        there.status, there.location = 307, elsewhere.url
        services.send_test(actor=actor, webhook=make(actor, there.url), now=NOW)
        deliver()
        assert not elsewhere.got
    assert Delivery.objects.get().last_status == 307


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "https:///x",
        "https://user:pw@a.example/",
        "https://a.example:0/",
        "https://a.example:99999/",
        "https://a b.example/",
        "http://127.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://169.254.169.254/latest",
        "http://10.0.0.8/",
    ],
)
def test_addresses_that_are_refused(actor, url):
    with pytest.raises(Invalid) as refused:
        make(actor, url)
    assert [error.field for error in refused.value.errors] == ["url"]
    assert not Webhook.objects.exists()


def test_a_name_that_leads_inside_gets_nothing(monkeypatch):
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    outside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]
    monkeypatch.setattr(sending.socket, "getaddrinfo", lambda *a, **k: outside + inside)
    outcome = sending.send(
        "http://innocent.example/", b"{}", secret=SECRET, delivery_id="d", now_s=0, timeout_s=0.2
    )
    assert outcome == sending.Outcome(None, sending.PRIVATE)


def test_the_secret_rests_encrypted_and_is_long(actor):
    webhook = make(actor, "https://a.example/token-in-the-path")
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret FROM alerts_webhook")
        assert SECRET not in cursor.fetchone()[0]
    assert "token-in-the-path" not in str(list(AuditEntry.objects.values()))
    with pytest.raises(Invalid):
        services.change_webhook(
            actor=actor, webhook=webhook, name="p", url=webhook.url, active=True, secret="short"
        )
    kept = services.change_webhook(actor=actor, webhook=webhook, name="p", url=webhook.url, active=False)
    assert Webhook.objects.get(pk=kept.pk).secret == SECRET
    with pytest.raises(Conflict):
        services.create_webhook(actor=actor, name="p", url="https://a.example/", secret=SECRET, now=NOW)


def test_only_operators(actor):
    nobody = viewer_of(factories.make_user())
    webhook = make(actor, "https://a.example/")
    for act in (
        lambda: make(nobody, "https://a.example/"),
        lambda: services.send_test(actor=nobody, webhook=webhook, now=NOW),
        lambda: services.delete_webhook(actor=nobody, webhook=webhook),
        lambda: services.acknowledge_alerts(actor=nobody, alerts=Alert.objects.all(), now=NOW),
    ):
        with pytest.raises(Forbidden):
            act()


def test_a_webhook_that_is_off_gets_nothing(actor, there):
    webhook = make(actor, there.url)
    services.change_webhook(actor=actor, webhook=webhook, name="pager", url=there.url, active=False)
    services.raise_alert(code="report_failed", object_id="node-x", now=NOW, node="n", task="t", why="w")
    assert not Delivery.objects.exists()
