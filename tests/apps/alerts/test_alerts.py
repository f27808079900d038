"""Alerts open once, count, close by themselves, and are acknowledged by people (OPS-09)."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction

from apps.alerts import services
from apps.alerts.kinds import KINDS
from apps.alerts.models import Alert
from apps.core.models import AuditEntry
from apps.core.texts import TEXTS
from apps.tenants.scope import viewer_of
from tests.factories import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.req("OPS-09")]
LATE = services.Found("loop_late", "x", {"loop": "x", "period_s": 5})


def settle(*found: services.Found, judged: tuple[str, ...] = ("loop_late",), now=NOW) -> tuple[int, int]:
    return services.settle_lasting(judged=judged, found=found, now=now)


def test_a_condition_opens_one_alert_and_its_end_closes_it() -> None:
    assert settle(LATE) == (1, 0)
    assert settle(LATE) == (0, 0)
    assert settle(now=NOW + timedelta(minutes=1)) == (0, 1)
    assert settle(LATE) == (1, 0)
    assert Alert.objects.count() == 2
    assert Alert.objects.filter(closed_at__isnull=True).count() == 1


def test_what_was_not_judged_stays_as_it_is() -> None:
    settle(LATE)
    assert settle(judged=("tasks_waiting",)) == (0, 0)
    assert settle(judged=()) == (0, 0)
    assert Alert.objects.get().closed_at is None


def test_other_values_of_the_same_condition_are_kept() -> None:
    settle(services.Found("tasks_waiting", "", {"tasks": 1, "after_s": 600}), judged=("tasks_waiting",))
    settle(services.Found("tasks_waiting", "", {"tasks": 9, "after_s": 600}), judged=("tasks_waiting",))
    assert Alert.objects.get().params["tasks"] == 9


def test_the_database_itself_allows_one_open_alert_each() -> None:
    settle(LATE)
    with pytest.raises(IntegrityError), transaction.atomic():
        Alert.objects.create(code="loop_late", object_id="x", opened_at=NOW, last_at=NOW)


def test_what_happened_once_is_counted_and_over_after_quiet(settings) -> None:
    for minutes in (0, 1):
        at = NOW + timedelta(minutes=minutes)
        services.raise_alert(code="machine_mismatch", object_id="node-x", now=at, node="n")
    alert = Alert.objects.get()
    assert (alert.times, alert.opened_at, alert.last_at) == (2, NOW, NOW + timedelta(minutes=1))
    quiet = timedelta(seconds=settings.ALERT_QUIET_S)
    assert services.forget_old(now=alert.last_at + quiet) == 0
    assert services.forget_old(now=alert.last_at + quiet + timedelta(seconds=1)) == 1
    services.forget_old(now=NOW + timedelta(seconds=settings.ALERT_KEEP_S, days=1))
    assert not Alert.objects.exists()


def test_only_lasting_codes_are_settled() -> None:
    with pytest.raises(ValueError, match="not lasting"):
        settle(judged=("machine_mismatch",))


def test_acknowledging_is_noted_once_and_closes_nothing(operator) -> None:
    settle(LATE)
    for done in (1, 0):
        alerts = Alert.objects.all()
        assert services.acknowledge_alerts(actor=viewer_of(operator), alerts=alerts, now=NOW) == done
    alert = Alert.objects.get()
    assert (alert.acknowledged_by, alert.closed_at) == (operator.username, None)
    assert AuditEntry.objects.filter(verb="acknowledge_alert").count() == 1


def test_every_code_has_a_sentence() -> None:
    assert [code for code in KINDS if code not in TEXTS] == []
