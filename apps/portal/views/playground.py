"""The playground: a page whose script talks to /v1 with a key that stays in the page's memory."""

from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.problems import problem_response
from apps.core.scopes import TENANT
from apps.portal.forms import tenant_choices
from apps.portal.pages import page, person
from apps.tenants import services
from apps.tenants.scope import pick_tenant, viewer_of
from apps.workloads import selectors as workloads


@page(TENANT)
@require_safe
def playground(request: HttpRequest) -> HttpResponse:
    """Pick a model, chat, see the answer as it comes."""
    viewer = viewer_of(request.user)
    names = workloads.groups(viewer).filter(enable_api=True).order_by("model_name")
    shown = {
        "section": "playground",
        "models": sorted(set(names.values_list("model_name", flat=True))),
        "chosen": request.GET.get("model", ""),
        "tenants": tenant_choices(viewer),
        "words": _words(),
    }
    return render(request, "portal/playground.html", shown)


@page(TENANT)
@require_POST
def issue_key(request: HttpRequest) -> HttpResponse:
    """A key for this page, short-lived; the answer is the only place where it ever stands."""
    viewer = viewer_of(request.user)
    now = utc_now()
    try:
        key, plain = services.issue_key(
            actor=viewer,
            tenant=pick_tenant(viewer, request.POST.get("tenant") or None),
            member=person(request),
            name=_("playground"),
            expires_at=now + timedelta(seconds=settings.PLAYGROUND_KEY_TTL_S),
            now=now,
        )
    except Refusal as refusal:
        return problem_response(refusal)
    return JsonResponse({"key": plain, "prefix": key.prefix})


def _words() -> dict[str, str]:
    """Every sentence that the page's script may show, in the reader's language."""
    return {
        "you": _("You"),
        "model": _("Model"),
        "no_key": _("Paste an API key first, or make one for this page."),
        "no_model": _("Choose a model first."),
        "key_refused": _("The gateway does not know this key, or it is revoked or expired."),
        "key_good": _("Key accepted; models it may call: %(n)s."),
        "key_no_models": _("Key accepted, but it may call no model yet."),
        "key_made": _("Made a key for this page; it ends by itself. It is gone when you leave."),
        "unreachable": _("The server does not answer. Check the connection and try again."),
        "refused": _("The server refused (%(status)s)."),
        "stopped": _("Stopped."),
        "cut": _("The answer was cut off before its end."),
        "nothing": _("The model answered with nothing."),
        "figures": _("%(tokens)s tokens · first after %(first)s ms · %(rate)s tokens/s"),
        "figures_short": _("first after %(first)s ms · %(total)s s in all"),
    }
