"""Sentences of alerts and of what webhooks answer; `texts.py` says them."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

ALERTS: dict[str, Promise] = {
    # alerts, beside those that are reasons too
    "node_door_closed": _("The server can not reach the door of node %(node)s (%(reason)s)."),
    "card_held": _(
        "Card %(card)s of node %(node)s is in quarantine: process %(pid)s of an ended task holds"
        " %(used_mb)s MB of it. End it there, or release the card."
    ),
    "card_lost": _("Card %(card)s of node %(node)s is not reported any more."),
    "loop_failing": _("The loop %(loop)s failed %(failures)s times in a row."),
    "loop_late": _(
        "The loop %(loop)s is late: its period is %(period_s)s s, and no run of it has ended for more than "
        "%(after_s)s s."
    ),
    "tasks_waiting": _("%(tasks)s task(s) have waited for a place for more than %(after_s)s s."),
    "route_unserved": _(
        "Route %(route)s of model %(model)s (tenant %(tenant)s) has had no backend for more than %(after_s)s "
        "s: all %(backends)s are %(reason)s. Its service's page tells why."
    ),
    "usage_behind": _("Usage on host %(host)s has waited for more than %(after_s)s s to become rows."),
    "usage_unheard": _(
        "Host %(host)s has not said for more than %(after_s)s s whether its usage becomes rows; is its "
        "gateway down?"
    ),
    # webhooks
    "too_short": _("%(field)s must have at least %(min)s characters."),
    "bad_webhook_url": _("%(field)s is %(value)s; use http:// or https://, a host, and no user name."),
    "webhook_private": _(
        "It leads to an address of the inner network; allow those by WEBHOOK_ALLOW_PRIVATE, or use another."
    ),
    "webhook_unresolved": _("The host's name leads to no address."),
    "webhook_unreachable": _("No connection."),
    "webhook_timed_out": _("No answer in time."),
    "webhook_tls": _("The certificate is not to be trusted."),
    "webhook_refused": _("It answered with another status than 2xx."),
}
