"""Reads of alerts. For operators: whoever asks has been checked by the caller."""

from collections import defaultdict
from collections.abc import Collection

from django.db.models import Count

from apps.alerts.models import Alert, Delivery


def open_alerts_of(object_ids: Collection[str]) -> dict[str, list[Alert]]:
    """Open alerts by the object that they are about, in one statement; none asked, none read."""
    found: dict[str, list[Alert]] = defaultdict(list)
    if object_ids:
        for alert in Alert.objects.filter(object_id__in=object_ids, closed_at__isnull=True):
            found[alert.object_id].append(alert)
    return dict(found)


def count_open() -> dict[str, int]:
    """How many alerts are open, by code."""
    rows = Alert.objects.filter(closed_at__isnull=True).order_by()
    return dict(rows.values_list("code").annotate(count=Count("pk")))


def count_due() -> int:
    """Messages that are still to be delivered."""
    return Delivery.objects.filter(next_at__isnull=False).count()
