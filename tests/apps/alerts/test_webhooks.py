"""Webhooks: signed, at least once, with back-off, and never where an operator did not mean (OPS-09)."""

import hashlib
import hmac
import json
import socket
import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models.functions import Now

from apps.alerts import loop, sending, services
from apps.alerts.models import Alert, Delivery, Webhook
from apps.alerts.services.webhooks import DELIVER
from apps.core import leases
from apps.core.errors import Conflict, Forbidden, Invalid
from apps.core.models import AuditEntry, Lease
from apps.tenants.scope import viewer_of
from tests import factories
from tests.apps.alerts.receiver import dripping, receiver
from tests.factories import NOW
from tests.stack import until

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09")]
SECRET = "a-long-enough-secret"


@pytest.fixture
def actor(operator):
    return viewer_of(operator)


@pytest.fixture
def there(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    settings.WEBHOOK_BUDGET_S = settings.WEBHOOK_TIMEOUT_S = 60.0  # a busy machine is no dead receiver
    with receiver() as running:
        yield running


def make(actor, url, **more):
    return services.create_webhook(actor=actor, name="pager", url=url, secret=SECRET, now=NOW, **more)


def deliver(now=NOW):
    held = leases.acquire(DELIVER, "test", 30)
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
    assert int(NOW.timestamp()) <= int(stamp) <= int(NOW.timestamp()) + 60  # the run's own seconds count
    assert headers["X-HeteroFlow-Delivery"] == row.public_id == json.loads(body)["id"]


def test_what_fails_is_sent_again_later_under_the_same_id(actor, there, settings):
    webhook = make(actor, there.url)
    services.send_test(actor=actor, webhook=webhook, now=NOW)
    there.status = 500
    assert deliver() == {"delivered": 0, "failed": 1}
    row = Delivery.objects.get()
    assert (row.attempts, row.last_status, row.last_error) == (1, 500, "webhook_refused")
    webhook.refresh_from_db()
    assert webhook.next_at - webhook.tried_at == timedelta(seconds=settings.WEBHOOK_RETRY_S)
    assert deliver() == {"delivered": 0, "failed": 0}  # not due yet
    there.status = 200
    assert deliver(webhook.next_at) == {"delivered": 1, "failed": 0}
    row.refresh_from_db()
    assert (row.waiting, row.attempts) == (False, 2) and row.delivered_at >= webhook.next_at
    assert len({headers["X-HeteroFlow-Delivery"] for headers, _ in there.got}) == 1
    webhook.refresh_from_db()
    assert (webhook.failures_in_a_row, webhook.next_at) == (0, None)


def test_pauses_double_up_to_a_bound_and_end(actor, there, settings):
    assert [loop.back_off_s(n) for n in (1, 2, 3, 50)] == [5, 10, 20, settings.WEBHOOK_RETRY_MAX_S]
    webhook = make(actor, there.url)
    services.send_test(actor=actor, webhook=webhook, now=NOW)
    services.send_test(actor=actor, webhook=webhook, now=NOW)
    there.status = 503
    deliver(NOW + timedelta(seconds=settings.WEBHOOK_GIVE_UP_S - 60))
    assert Delivery.objects.filter(waiting=True).count() == 2
    deliver(NOW + timedelta(seconds=settings.WEBHOOK_GIVE_UP_S))  # at once for all that are as old
    assert list(Delivery.objects.values_list("waiting", "delivered_at")) == [(False, None)] * 2
    assert len(there.got) == 2


def test_one_that_is_dead_for_long_starves_no_other(actor, there):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead_port = closed.getsockname()[1]
    dead = services.create_webhook(
        actor=actor, name="dead", url=f"http://127.0.0.1:{dead_port}/", secret=SECRET, now=NOW
    )
    old = {"webhook": dead, "event": "test", "body": "{}", "created_at": NOW - timedelta(hours=1)}
    Delivery.objects.bulk_create([Delivery(public_id=f"dlv-{n}", **old) for n in range(2000)])
    alive = make(actor, there.url)
    for _ in range(3):
        services.send_test(actor=actor, webhook=alive, now=NOW)
    assert deliver() == {"delivered": 3, "failed": 1}
    assert Delivery.objects.filter(webhook=dead, attempts__gt=0).count() == 1
    assert deliver() == {"delivered": 0, "failed": 0}


def test_webhooks_take_turns_and_the_one_not_tried_for_longest_begins(actor, there):
    first = make(actor, there.url)
    second = services.create_webhook(actor=actor, name="b", url=there.url, secret=SECRET, now=NOW)
    rows = [services.send_test(actor=actor, webhook=one, now=NOW) for one in (first, first, second, second)]
    Webhook.objects.filter(pk=first.pk).update(tried_at=NOW - timedelta(hours=1))
    Webhook.objects.filter(pk=second.pk).update(tried_at=NOW - timedelta(hours=2))
    assert deliver() == {"delivered": 4, "failed": 0}
    got = [json.loads(body)["id"] for _, body in there.got]
    assert got == [rows[n].public_id for n in (2, 0, 3, 1)]


def test_the_end_of_an_alert_never_comes_before_its_beginning(actor, there):
    webhook = make(actor, there.url)
    found = [services.Found("loop_late", "x", {"loop": "x", "period_s": 5})]
    services.settle_lasting(judged=["loop_late"], found=found, now=NOW)
    there.status = 500
    assert deliver() == {"delivered": 0, "failed": 1}
    services.settle_lasting(judged=["loop_late"], found=[], now=NOW)
    there.status = 200
    assert deliver() == {"delivered": 0, "failed": 0}  # "closed" is new, and waits behind "opened"
    webhook.refresh_from_db()
    assert deliver(webhook.next_at) == {"delivered": 2, "failed": 0}
    assert [json.loads(body)["event"] for _, body in there.got] == ["opened", "opened", "closed"]


def test_a_clock_that_was_ahead_for_a_while_costs_no_pause_and_no_order(actor, there):
    webhook = make(actor, there.url)
    found = [services.Found("loop_late", "x", {"loop": "x", "period_s": 5})]
    services.settle_lasting(judged=["loop_late"], found=found, now=NOW + timedelta(days=365))
    there.status = 500
    assert deliver(NOW + timedelta(days=365)) == {"delivered": 0, "failed": 1}
    there.status = 200
    services.settle_lasting(judged=["loop_late"], found=[], now=NOW)
    assert deliver(NOW) == {"delivered": 2, "failed": 0}
    assert [json.loads(body)["event"] for _, body in there.got] == ["opened", "opened", "closed"]
    webhook.refresh_from_db()
    assert webhook.next_at is None


def test_a_death_between_the_note_and_the_outcome_spins_on_nothing(actor, there, monkeypatch):
    """The run ends as by kill -9: nothing of it is written after the sending began."""
    webhook = make(actor, there.url)
    row = services.send_test(actor=actor, webhook=webhook, now=NOW)

    class Killed(BaseException):
        pass

    def die(*args, **more):
        raise Killed

    now = NOW
    for attempt, pause_s in ((1, 5), (2, 10), (3, 20)):
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(loop, "send", die)
            deliver(now)
        assert deliver(now) == {"delivered": 0, "failed": 0}  # not again at once
        row.refresh_from_db()
        webhook.refresh_from_db()
        assert row.attempts == attempt
        assert webhook.next_at - webhook.tried_at == timedelta(seconds=pause_s)
        now = webhook.next_at
    assert deliver(now) == {"delivered": 1, "failed": 0}


def test_a_run_that_was_overtaken_while_it_sent(actor, there, monkeypatch):
    """Two runs at once: the second finds the try noted and sends nothing; the first writes nothing more."""
    webhook = make(actor, there.url)
    services.send_test(actor=actor, webhook=webhook, now=NOW)
    whole, second = loop.send, []

    def sleep_through_the_lease(*args, **more):
        outcome = whole(*args, **more)
        Lease.objects.filter(name=DELIVER).update(expires_at=NOW - timedelta(days=1))
        second.append(deliver())
        return outcome

    monkeypatch.setattr(loop, "send", sleep_through_the_lease)
    with pytest.raises(leases.LeaseLost):
        deliver()
    assert second == [{"delivered": 0, "failed": 0}]
    assert len(there.got) == 1 and Delivery.objects.get().waiting


def test_the_lease_outlives_a_sending(actor, there, monkeypatch, settings):
    services.send_test(actor=actor, webhook=make(actor, there.url), now=NOW)
    settings.WEBHOOK_TIMEOUT_S = 600.0
    seen = []

    def look(*args, timeout_s, **more):
        outlives = Lease.objects.filter(name=DELIVER, expires_at__gt=Now() + timedelta(seconds=timeout_s))
        seen.append(outlives.exists())
        return sending.Outcome(204, "")

    monkeypatch.setattr(loop, "send", look)
    deliver()
    assert seen == [True]


def post(url, *, timeout_s=0.5, **more):
    return sending.send(url, b"{}", secret=SECRET, delivery_id="d", now_s=0, timeout_s=timeout_s, **more)


@pytest.mark.parametrize(
    "before", [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
def test_a_receiver_that_drips_holds_it_no_longer_than_the_limit(settings, before):
    """It would drip for ever; that there is an outcome at all is the limit's doing."""
    settings.WEBHOOK_ALLOW_PRIVATE = True
    with dripping(before=before) as url:
        assert post(url) == sending.Outcome(None, sending.TIMED_OUT)


def test_the_status_counts_whatever_drips_behind_it(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    with dripping(before=b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n") as url:
        assert post(url, timeout_s=20) == sending.Outcome(200, "")


def test_one_that_takes_no_byte_of_a_long_message(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        outcome = sending.send(url, b"x" * 50_000_000, secret=SECRET, delivery_id="d", now_s=0, timeout_s=0.5)
    assert outcome == sending.Outcome(None, sending.TIMED_OUT)


def test_a_tls_handshake_that_never_ends(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    with dripping(before=b"\x16\x03\x03\x40\x00") as url:
        assert post(url.replace("http:", "https:")) == sending.Outcome(None, sending.TIMED_OUT)


def test_a_resolver_that_hangs_is_left_behind_and_asked_once(settings):
    settings.WEBHOOK_ALLOW_PRIVATE = True
    answers, asked = threading.Event(), []

    def slow(host, port, **more):
        asked.append(host)
        answers.wait(60)
        return []

    url = "http://slow.example/"
    assert post(url, resolve=slow) == sending.Outcome(None, sending.TIMED_OUT)
    assert post(url, resolve=slow) == sending.Outcome(None, sending.TIMED_OUT)
    assert asked == ["slow.example"] and not answers.is_set()
    answers.set()
    until(lambda: "slow.example" not in sending._looked_up, "the look-up is over")
    assert post(url, timeout_s=20, resolve=slow) == sending.Outcome(None, sending.UNRESOLVED)


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
        "http://[64:ff9b::a00:1]/",  # 10.0.0.1 behind a translator
        "http://[64:ff9b:1::808:808]/",
        "http://[2002:a00:1::1]/",
        "http://[::a00:1]/",
        "http://[fec0::1]/",
        "http://169.254.169.254/latest",
        "http://10.0.0.8/",
    ],
)
def test_addresses_that_are_refused(actor, url):
    with pytest.raises(Invalid) as refused:
        make(actor, url)
    assert [error.field for error in refused.value.errors] == ["url"]
    assert not Webhook.objects.exists()


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "[2606:4700::1111]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]", "[2002:808:808::1]"]
)
def test_public_addresses_are_taken(host):
    assert sending.check_url(f"https://{host}/") == ""


def test_a_name_that_leads_inside_gets_nothing():
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]
    outside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 80))]
    outcome = post("http://innocent.example/", timeout_s=20, resolve=lambda *a, **k: outside + inside)
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
