"""Counts requests for `/metrics`: by method, route template and kind of status (OPS-04).

The template as it stands in the URL table and never the path: ids in paths would make a series each, and
may be a tenant's. Owns the two metrics and the middleware that feeds them.
"""

import time
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from prometheus_client import Counter, Histogram

METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = Counter(
    "heteroflow_http_requests", "Requests answered, but for inference.", ["method", "route", "status"]
)
DURATION = Histogram(
    "heteroflow_http_request_duration_seconds",
    "Time to the answer, but for inference.",
    ["method", "route"],
    buckets=BUCKETS,
)


def route_of(request: HttpRequest) -> str:
    """The template of the address in the URL table; `static` and `unmatched` for what is not there."""
    match = request.resolver_match
    if match is not None:
        return match.route or "/"
    return "static" if request.path.startswith(settings.STATIC_URL) else "unmatched"


class RequestMetrics:
    """Middleware: counts what comes back from all that stands behind it."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._call_async(request)
        begun = time.perf_counter()
        response = self.get_response(request)
        _count(request, response, begun)
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponse:
        begun = time.perf_counter()
        response: HttpResponse = await self.get_response(request)
        _count(request, response, begun)
        return response


def _count(request: HttpRequest, response: HttpResponse, begun: float) -> None:
    method = request.method if request.method in METHODS else "other"
    route = route_of(request)
    REQUESTS.labels(method, route, f"{response.status_code // 100}xx").inc()
    DURATION.labels(method, route).observe(time.perf_counter() - begun)
