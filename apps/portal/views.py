"""Pages of the tenant portal."""

from django.http import HttpRequest, HttpResponse


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Unknown address."""
    return HttpResponse("not found", status=404)


def handler500(request: HttpRequest) -> HttpResponse:
    """Anything that escaped."""
    return HttpResponse("internal error", status=500)
