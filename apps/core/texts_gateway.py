"""Sentences of the route test: why a route or a replica gets a call, or none (GW-03), and
of the table of backends (GW-08); `texts.py` says them."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

GATEWAY: dict[str, Promise] = {
    "route_gets": _("It gets calls like this one."),
    "route_gets_none": _(
        "It gets none while others stand better: by priority number, a weight above 0, or sound replicas."
    ),
    "route_off": _("It is switched off."),
    "route_dozes": _("Its replica has just left to sleep; a call calls it back."),
    "route_sleeps": _("It sleeps until somebody wakes it: its page in the portal does. A call does not."),
    "route_without_replica": _("No replica is ready: it starts, sleeps, failed or was stopped."),
    "address_any": _("The key may be used from anywhere."),
    "address_within": _("%(address)s lies in %(networks)s, from where the key may be used."),
    "address_outside": _("%(address)s lies in none of %(networks)s, from where alone the key may be used."),
    "address_not_judged": _(
        "The key may be used from %(networks)s alone; name an address to have it judged."
    ),
    "standing_takes": _("takes calls"),
    "standing_trial": _("has failed lately: is tried with one call"),
    "standing_hot": _("on a card above the temperature limit: passed over while others can serve"),
    "standing_reserve": _("reserve, for its route has weight 0: used when nothing else can serve"),
    "standing_hot_reserve": _("reserve, and on a card above the temperature limit"),
    "standing_passed_over": _("has failed lately: passed over while others can serve"),
    "standing_passed_over_reserve": _("reserve, and has failed lately"),
    "standing_open": _("could not be reached: gets no call for now"),
    "standing_full": _("has as many calls as it may have"),
    "standing_tried": _("has failed this call"),
    "circuit_closed": _("takes calls"),
    "circuit_half_open": _("is tried with one call"),
    "circuit_passed_over": _("passed over while others can serve"),
    "circuit_open": _("gets no call for now"),
    "failure_refused": _("no connection"),
    "failure_closed": _("closed the connection before it answered"),
    "failure_broken": _("broke off its answer"),
    "failure_timeout": _("did not answer in time"),
    "failure_error": _("answered with an error of its own"),
    "failure_credential": _("did not accept the gateway's key"),
    "standing_not_pinned": _("not the version or backend that is asked for"),
}
