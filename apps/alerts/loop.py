"""Sends messages about alerts that are due (OPS-09): at least once, with back-off, never two runs at once.

A row is written before and after, the sending stands outside of every transaction. A run that dies after
sending and before writing sends the same message once more, under the same id.
"""

import time
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from apps.alerts.models import Delivery
from apps.alerts.sending import Outcome, send
from apps.core import hints
from apps.core.leases import Held
from apps.core.ticks import tick

NAME = "alerts.deliver"
AT_ONCE = 50


@tick(NAME, every="ALERT_DELIVERY_PERIOD_S")
def deliver(lease: Held, now: datetime) -> dict[str, Any]:
    """Send what is due. A webhook that fails is left alone for the rest of the run, so that it holds up no
    other; what the budget leaves is kicked on."""
    begun = time.monotonic()
    due = Delivery.objects.filter(next_at__lte=now, webhook__active=True).select_related("webhook")
    done, failing = {"delivered": 0, "failed": 0}, set[int]()
    for row in due.order_by("attempts", "next_at", "pk")[:AT_ONCE]:
        if time.monotonic() - begun > settings.WEBHOOK_BUDGET_S:
            hints.kick(NAME)
            break
        if row.webhook_id in failing:
            continue
        lease.renew(settings.WEBHOOK_TIMEOUT_S * 3 + settings.TICK_LEASE_TTL_S)
        outcome = send(
            row.webhook.url,
            row.body.encode(),
            secret=row.webhook.secret,
            delivery_id=row.public_id,
            now_s=now.timestamp(),
            timeout_s=settings.WEBHOOK_TIMEOUT_S,
        )
        with lease.transaction():
            _note(row, outcome, now)
        done["failed" if outcome.error else "delivered"] += 1
        if outcome.error:
            failing.add(row.webhook_id)
    return done


def back_off_s(attempts: int) -> float:
    """Seconds until the next try after so many: doubling from WEBHOOK_RETRY_S up to WEBHOOK_RETRY_MAX_S."""
    return float(min(settings.WEBHOOK_RETRY_S * 2 ** min(attempts - 1, 20), settings.WEBHOOK_RETRY_MAX_S))


def _note(row: Delivery, outcome: Outcome, now: datetime) -> None:
    attempts = row.attempts + 1
    next_at = None
    if outcome.error and now - row.created_at < timedelta(seconds=settings.WEBHOOK_GIVE_UP_S):
        next_at = now + timedelta(seconds=back_off_s(attempts))
    Delivery.objects.filter(pk=row.pk, attempts=row.attempts).update(
        attempts=attempts,
        next_at=next_at,
        delivered_at=None if outcome.error else now,
        last_status=outcome.status,
        last_error=outcome.error,
    )
