"""Writes to alerts and webhooks."""

from apps.alerts.services.alerts import Found, acknowledge_alerts, forget_old, raise_alert, settle_lasting
from apps.alerts.services.webhooks import change_webhook, create_webhook, delete_webhook, send_test

__all__ = [
    "Found",
    "acknowledge_alerts",
    "change_webhook",
    "create_webhook",
    "delete_webhook",
    "forget_old",
    "raise_alert",
    "send_test",
    "settle_lasting",
]
