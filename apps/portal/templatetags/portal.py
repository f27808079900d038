"""Template words of the portal: sentences of codes, words of states, durations. Pure presentation."""

from collections.abc import Mapping
from typing import Any

from django import template
from django.utils import formats
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from apps.core import texts
from apps.tenants import trail
from apps.tenants.scope import viewer_of

register = template.Library()


@register.filter
def state_word(state: str) -> str:
    """The state as a word in the active language."""
    return texts.say(f"state_{state}")


@register.filter
def phase_word(phase: str) -> str:
    """Where inside its state a task is, as a word."""
    return texts.say(f"phase_{phase}")


@register.filter
def qos_word(qos: str) -> str:
    """How well a task's share of its card is walled off, in words."""
    return texts.say(f"qos_{qos}")


@register.filter
def failure_word(kind: str) -> str:
    """How a backend failed a call, in words."""
    return texts.say(f"failure_{kind}")


@register.filter
def sentence(reason: Any) -> str:
    """The sentence of a reason, a refusal or a warning: anything with `code` and `params`."""
    if not reason:
        return ""
    if isinstance(reason, Mapping):
        return texts.say(str(reason.get("code", "")), reason.get("params") or {})
    return texts.say(str(reason.code), reason.params)


@register.filter
def nearest_refusal(service: Mapping[str, Any]) -> str:
    """Beside the summary of why a service waits, the first thing that a node lacks; "" where it does not
    wait or nothing more is known."""
    for task in service["tasks"]:
        if task["status"] == "pending":
            main = (task["reason"] or {}).get("code")
            return next((str(told["text"]) for told in task["refusals"] if told and told["code"] != main), "")
    return ""


@register.filter
def count(number: int) -> str:
    """A number of things, its thousands apart."""
    return formats.number_format(number, 0, force_grouping=True)


@register.filter
def hours(seconds: float) -> str:
    """Seconds as hours with two places, as bills have them."""
    return formats.number_format(seconds / 3600, 2)


@register.filter
def size(mb: int) -> str:
    """Megabytes as sentences have them."""
    return texts.say_size(mb)


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds as the two largest units; a dash where there is no value, which is not zero."""
    if seconds is None:
        return "–"
    whole = max(int(seconds), 0)
    if whole < 60:
        return ngettext("%(n)s second", "%(n)s seconds", whole) % {"n": whole}
    if whole < 3600:
        return _("%(m)s min %(s)s s") % {"m": whole // 60, "s": whole % 60}
    if whole < 86400:
        return _("%(h)s h %(m)s min") % {"h": whole // 3600, "m": whole % 3600 // 60}
    return _("%(d)s d %(h)s h") % {"d": whole // 86400, "h": whole % 86400 // 3600}


@register.filter
def manages(user: Any) -> bool:
    """Whether a person manages a tenant, or all of them: owners, admins, operators."""
    return trail.may_read(viewer_of(user))


@register.filter
def did(verb: str) -> str:
    """What was done, as words of the audit trail."""
    return texts.say(f"did_{verb}")
