"""Webhooks, and the rows of what is to be told to them. Sending is `loop.py`'s."""

import json
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.db import IntegrityError, transaction
from django.utils.translation import override

from apps.alerts.kinds import KINDS
from apps.alerts.models import Alert, Delivery, Webhook
from apps.alerts.sending import check_url
from apps.core import audit, hints, ids, secrets, texts
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid

DELIVER = "alerts.deliver"
SECRET_MIN = 16


def create_webhook(*, actor: audit.Actor, name: str, url: str, secret: str, now: datetime) -> Webhook:
    """Raises Forbidden for anyone but an operator, Invalid for an unusable address or a short secret,
    Conflict for a taken name."""
    _check(actor, url, secret)
    try:
        with transaction.atomic():
            row = Webhook.objects.create(name=name, url=url, secret=secret, created_at=now)
            audit.note(actor, "create_webhook", **_named(row), after={"host": host_of(url)})
    except IntegrityError:
        raise Conflict("name_taken", value=name) from None
    return row


def change_webhook(
    *, actor: audit.Actor, webhook: Webhook, name: str, url: str, active: bool, secret: str = ""
) -> Webhook:
    """An empty secret keeps the present one. What waits is tried at once. Raises as create_webhook does."""
    _check(actor, url, secret or None)
    new: dict[str, Any] = {"name": name, "url": url, "active": active, "next_at": None}
    with transaction.atomic():
        row = Webhook.objects.select_for_update().get(pk=webhook.pk)
        before, after = audit.changes(_shown(row.name, row.url, row.active), _shown(name, url, active))
        if secret:
            new["secret"] = after["secret"] = secret
        for field, value in new.items():
            setattr(row, field, value)
        try:
            with transaction.atomic():
                row.save(update_fields=list(new))
        except IntegrityError:
            raise Conflict("name_taken", value=name) from None
        if after:
            audit.note(actor, "change_webhook", **_named(row), before=before, after=after)
        hints.kick(DELIVER)
    return row


def delete_webhook(*, actor: audit.Actor, webhook: Webhook) -> None:
    """With all that was on its way. Raises Forbidden."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        audit.note(actor, "delete_webhook", **_named(webhook), before={"host": host_of(webhook.url)})
        Webhook.objects.filter(pk=webhook.pk).delete()


def send_test(*, actor: audit.Actor, webhook: Webhook, now: datetime) -> Delivery:
    """Send a message that stands for no alert, behind those that wait; the first of them is tried at once.
    Raises Forbidden."""
    if not actor.is_operator:
        raise Forbidden
    with transaction.atomic():
        Webhook.objects.filter(pk=webhook.pk).update(next_at=None)
        audit.note(actor, "test_webhook", **_named(webhook))
        return _queue(webhook, None, "test", now)


def tell(alert: Alert, event: str, now: datetime) -> None:
    """Queue a message about an alert to every active webhook, in the transaction of the change."""
    for webhook in Webhook.objects.filter(active=True):
        _queue(webhook, alert, event, now)


def _queue(webhook: Webhook, alert: Alert | None, event: str, now: datetime) -> Delivery:
    public_id = ids.new_id("delivery")
    row = Delivery.objects.create(
        public_id=public_id,
        webhook=webhook,
        alert=alert,
        event=event,
        body=json.dumps({"id": public_id, "event": event, "alert": _picture(alert)}),
        created_at=now,
    )
    hints.kick(DELIVER)
    return row


def _picture(alert: Alert | None) -> dict[str, Any] | None:
    if alert is None:
        return None
    with override("en"):
        text = texts.say(alert.code, alert.params)
    return {
        "id": alert.public_id,
        "code": alert.code,
        "severity": KINDS[alert.code].severity.value if alert.code in KINDS else "warning",
        "object": alert.object_id,
        "params": alert.params,
        "text": text,
        "opened_at": alert.opened_at.isoformat(),
        "closed_at": alert.closed_at.isoformat() if alert.closed_at else None,
    }


def _check(actor: audit.Actor, url: str, secret: str | None) -> None:
    if not actor.is_operator:
        raise Forbidden
    errors = []
    if code := check_url(url):
        errors.append(FieldError("url", code, url[:200]))
    if secret is not None and len(secret) < SECRET_MIN:
        errors.append(FieldError("secret", "too_short", None, {"min": SECRET_MIN}))
    if errors:
        raise Invalid(errors)


def host_of(url: str) -> str:
    """What may be shown of an address everywhere: its path is a credential with many services."""
    return urlsplit(url).hostname or ""


def _shown(name: str, url: str, active: bool) -> dict[str, Any]:
    # The mark tells a change of the path, and nothing of it.
    return {"name": name, "host": host_of(url), "path_mark": secrets.sha256_hex(url)[:8], "active": active}


def _named(row: Webhook) -> dict[str, Any]:
    return {"kind": "webhook", "public_id": row.public_id, "name": row.name}
