"""Sends messages about alerts that are due (OPS-09): at least once, in their order, with back-off, never two
runs at once.

The unit of waiting is the webhook: its messages go out oldest first, and while the oldest does not arrive the
others wait behind it, so that the end of an alert never comes before its beginning. A try is noted before it
is made, outside of every transaction, and its outcome afterwards: a run that dies in between has the message
sent again, under the same id, after the pause of a failure.
"""

import time
from collections import deque
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from apps.alerts import selectors
from apps.alerts.models import Delivery, Webhook
from apps.alerts.sending import Outcome, send
from apps.alerts.services.webhooks import DELIVER
from apps.core import hints
from apps.core.leases import Held
from apps.core.ticks import tick


@tick(DELIVER, every="ALERT_DELIVERY_PERIOD_S")
def deliver(lease: Held, now: datetime) -> dict[str, Any]:
    """Send what is due, one message a webhook in turn; one that fails has its turn after its pause. What the
    budget leaves is kicked on."""
    begun = time.monotonic()
    done = {"delivered": 0, "failed": 0}
    turns = deque(selectors.due_webhooks(now))
    while turns:
        spent_s = time.monotonic() - begun
        if spent_s > settings.WEBHOOK_BUDGET_S:
            hints.kick(DELIVER)
            break
        webhook = turns.popleft()
        at = now + timedelta(seconds=spent_s)
        lease.renew(settings.WEBHOOK_TIMEOUT_S + settings.TICK_LEASE_TTL_S)
        with lease.transaction():
            row = _begin(webhook, at)
        if row is None:
            continue
        outcome = send(
            webhook.url,
            row.body.encode(),
            secret=webhook.secret,
            delivery_id=row.public_id,
            now_s=at.timestamp(),
            timeout_s=settings.WEBHOOK_TIMEOUT_S,
        )
        with lease.transaction():
            _end(row, outcome, at)
        if outcome.error:
            done["failed"] += 1
        else:
            done["delivered"] += 1
            turns.append(webhook)
    return done


def back_off_s(failures: int) -> float:
    """Seconds until the next try after so many: doubling from WEBHOOK_RETRY_S up to WEBHOOK_RETRY_MAX_S."""
    return float(min(settings.WEBHOOK_RETRY_S * 2 ** min(failures - 1, 20), settings.WEBHOOK_RETRY_MAX_S))


def _begin(webhook: Webhook, at: datetime) -> Delivery | None:
    """Note a try of the oldest message as if it had failed; None where nothing waits any more, or the webhook
    was switched off or deleted."""
    current = Webhook.objects.select_for_update().filter(pk=webhook.pk, active=True).first()
    row = webhook.deliveries.filter(waiting=True).order_by("pk").first()  # a clock may be set back
    if current is None or row is None:
        return None
    webhook.url, webhook.secret = current.url, current.secret
    failures = current.failures_in_a_row + 1
    next_at = at + timedelta(seconds=back_off_s(failures))
    Webhook.objects.filter(pk=webhook.pk).update(failures_in_a_row=failures, tried_at=at, next_at=next_at)
    row.attempts += 1
    row.save(update_fields=["attempts"])
    return row


def _end(row: Delivery, outcome: Outcome, at: datetime) -> None:
    Delivery.objects.filter(pk=row.pk).update(last_status=outcome.status, last_error=outcome.error)
    if not outcome.error:
        Delivery.objects.filter(pk=row.pk).update(waiting=False, delivered_at=at)
        Webhook.objects.filter(pk=row.webhook_id).update(failures_in_a_row=0, next_at=None)
        return
    # The rest would each have to fail by itself for a webhook that has been dead for so long.
    old = at - timedelta(seconds=settings.WEBHOOK_GIVE_UP_S)
    given_up = Delivery.objects.filter(webhook_id=row.webhook_id, waiting=True, created_at__lte=old)
    given_up.update(waiting=False, last_error=outcome.error)
