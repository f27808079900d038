"""Unknown addresses and anything that escaped: a page for people, the problem shape below /api."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string

from apps.core import problems
from apps.core.requests import request_id
from apps.portal.pages import guard

MACHINE_PATHS = ("/api/", "/agent/", "/v1/")


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Unknown address, or an object that is not there for this viewer."""
    if request.path.startswith(MACHINE_PATHS):
        return problems.handler404(request, exception)
    return guard(request, render(request, "portal/404.html", status=404))


def handler500(request: HttpRequest) -> HttpResponse:
    """Anything that escaped. Reads no row and no session: the database may be what failed."""
    if request.path.startswith(MACHINE_PATHS):
        return problems.handler500(request)
    text = render_to_string("portal/500.html", {"request_id": request_id.get()})
    return guard(request, HttpResponse(text, status=500))
