"""The audit trail of one's tenants, for owners and admins (TEN-08)."""

from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from apps.core.models import AuditEntry
from apps.core.scopes import TENANT
from apps.portal.pages import page
from apps.tenants import trail
from apps.tenants.scope import viewer_of

SHOWN_ACTS = 50
LONGEST_WORD = 200


@page(TENANT)
@require_safe
def trail_list(request: HttpRequest) -> HttpResponse:
    """Who did what; one field searches in persons' names, objects and ids."""
    viewer = viewer_of(request.user)
    rows = trail.entries(viewer)
    wanted = request.GET.get("q", "").strip()[:LONGEST_WORD]
    if wanted and wanted.isprintable():
        rows = (
            rows.filter(actor__icontains=wanted)
            | rows.filter(object_name__icontains=wanted)
            | rows.filter(object_id=wanted)
        )
    shown_page = Paginator(rows, SHOWN_ACTS).get_page(request.GET.get("page"))
    shown: dict[str, Any] = {
        "section": "audit",
        "wanted": wanted,
        "shown_page": shown_page,
        "acts": [{"entry": entry, "fields": _fields(entry)} for entry in shown_page.object_list],
        "many_tenants": viewer.is_operator or len(viewer.roles) > 1,
    }
    return render(request, "portal/audit.html", shown)


def _fields(entry: AuditEntry) -> list[tuple[str, Any, Any]]:
    """(field, before, after) of each changed field."""
    names = list(dict.fromkeys([*entry.before, *entry.after]))
    return [(name, entry.before.get(name), entry.after.get(name)) for name in names]
