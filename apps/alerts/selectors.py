"""Reads of alerts. For operators: whoever asks has been checked by the caller."""

from collections import defaultdict
from collections.abc import Collection
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet

from apps.alerts.models import Alert, Delivery, Webhook


def open_alerts_of(object_ids: Collection[str]) -> dict[str, list[Alert]]:
    """Open alerts by the object that they are about, in one statement; none asked, none read."""
    found: dict[str, list[Alert]] = defaultdict(list)
    if object_ids:
        for alert in Alert.objects.filter(object_id__in=object_ids, closed_at__isnull=True):
            found[alert.object_id].append(alert)
    return dict(found)


def open_objects(codes: Collection[str]) -> set[tuple[str, str]]:
    """Code and object of each open alert of these codes."""
    rows = Alert.objects.filter(code__in=codes, closed_at__isnull=True)
    return set(rows.values_list("code", "object_id"))


def count_open() -> dict[str, int]:
    """How many alerts are open, by code."""
    rows = Alert.objects.filter(closed_at__isnull=True).order_by()
    return dict(rows.values_list("code").annotate(count=Count("pk")))


def count_waiting() -> int:
    """Messages that are still to be delivered."""
    return Delivery.objects.filter(waiting=True).count()


def due_webhooks(now: datetime) -> QuerySet[Webhook]:
    """Webhooks that a message waits for and whose pause is over; the one not tried for longest comes first,
    so that each has its turn whatever waits for the others. A pause longer than any is of a clock that was
    ahead then, and has been set right since."""
    waiting = Delivery.objects.filter(webhook=OuterRef("pk"), waiting=True)
    longest = now + timedelta(seconds=2 * settings.WEBHOOK_RETRY_MAX_S)
    pause_is_over = Q(next_at=None) | Q(next_at__lte=now) | Q(next_at__gt=longest)
    due = Webhook.objects.filter(pause_is_over, Exists(waiting), active=True)
    return due.order_by(F("tried_at").asc(nulls_first=True), "pk")
