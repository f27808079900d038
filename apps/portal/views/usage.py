"""Usage over some days of UTC: requests and tokens as bars and by what one asks for; card time by service."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from apps.core.clock import utc_now
from apps.core.scopes import TENANT
from apps.portal.forms import tenant_choices
from apps.portal.pages import is_fragment, page
from apps.tenants.scope import viewer_of
from apps.usage.card_times import time_by_group
from apps.usage.overview import PeriodForm, build_usage


@page(TENANT)
@require_safe
def usage(request: HttpRequest) -> HttpResponse:
    """What is asked for; "nothing in these days" is said, never shown as a row of zeros."""
    now = utc_now()
    viewer = viewer_of(request.user)
    tenants = tenant_choices(viewer)
    form = PeriodForm(request.GET.dict(), today=now.date(), tenants=tenants)
    found = build_usage(viewer, form, now)
    shown: dict[str, Any] = {
        "section": "usage",
        "form": form,
        "usage": found,
        "card_times": time_by_group(viewer, found["first"], found["last"]) if found else [],
        "has_tenant": bool(tenants),
    }
    template = "portal/usage_body.html" if is_fragment(request) else "portal/usage.html"
    return render(request, template, shown)
