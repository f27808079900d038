"""Usage of today by model: requests and tokens; card time of the last thirty days by service."""

from datetime import datetime, timedelta

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from apps.core.clock import utc_now
from apps.core.scopes import TENANT
from apps.portal.forms import tenant_choices
from apps.portal.pages import page
from apps.tenants.scope import viewer_of
from apps.usage import selectors
from apps.usage.card_times import time_by_group

CARD_DAYS = 30


def start_of_day(now: datetime) -> datetime:
    """Midnight of the active time zone before `now`."""
    return timezone.localtime(now).replace(hour=0, minute=0, second=0, microsecond=0)


@page(TENANT)
@require_safe
def today(request: HttpRequest) -> HttpResponse:
    """Per model since midnight; "nothing yet" is said, never shown as a row of zeros."""
    now = utc_now()
    viewer = viewer_of(request.user)
    uses = selectors.use_by_model(viewer, since=start_of_day(now), until=now)
    last_day = now.date()
    first_day = last_day - timedelta(days=CARD_DAYS - 1)
    shown = {
        "section": "usage",
        "card_times": time_by_group(viewer, first_day, last_day),
        "first_day": first_day,
        "last_day": last_day,
        "uses": uses,
        "has_tenant": bool(tenant_choices(viewer)),
        "since": start_of_day(now),
        "requests": sum(use.requests for use in uses),
        "failed": sum(use.failed for use in uses),
        "prompt_tokens": sum(use.prompt_tokens for use in uses),
        "completion_tokens": sum(use.completion_tokens for use in uses),
    }
    return render(request, "portal/usage.html", shown)
