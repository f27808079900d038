"""Alerts on nodes: something that an operator should look at, counted instead of repeated."""

from datetime import datetime

from django.db import transaction
from django.db.models import F

from apps.core.errors import Value
from apps.fleet.models import Node, NodeAlert


def raise_alert(*, node: Node, code: str, now: datetime, **params: Value) -> None:
    """Note an alert, or count one more of its code with the latest parameters."""
    with transaction.atomic():
        row, new = NodeAlert.objects.get_or_create(
            node=node, code=code, defaults={"params": params, "first_at": now, "last_at": now}
        )
        if not new:
            NodeAlert.objects.filter(pk=row.pk).update(times=F("times") + 1, last_at=now, params=params)
