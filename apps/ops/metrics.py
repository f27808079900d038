"""`/metrics` of a server process in Prometheus' text form (OPS-04): API, gateway, loops, machines, queue.

Owns who may read it and how the values of several processes become one answer. In one process they are in
memory; where several serve, all of them share the folder PROMETHEUS_MULTIPROC_DIR, where each has its own
files (apps/core/metric_slots.py), and any of them answers for all.
"""

import hmac
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from apps.core import metric_slots
from apps.core.errors import Refusal
from apps.core.loopback import is_loopback
from apps.core.problems import problem_response
from apps.core.scopes import metrics
from apps.ops.row_metrics import RowMetrics

log = logging.getLogger("heteroflow.ops")

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
# Set by proxies: who asks through one is not on this machine, whatever the address says.
FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP")


def may_read(request: HttpRequest) -> bool:
    """The bearer of METRICS_TOKEN; without a token, this machine itself where the profile allows that."""
    token = settings.METRICS_TOKEN
    if token:
        offered = request.headers.get("Authorization", "")
        return hmac.compare_digest(offered.encode(), f"Bearer {token}".encode())
    return bool(settings.METRICS_OPEN_ON_LOOPBACK) and _is_from_here(request)


def _is_from_here(request: HttpRequest) -> bool:
    if any(name in request.headers for name in FORWARDED):
        return False
    return is_loopback(request.META.get("REMOTE_ADDR", ""))


def registry() -> CollectorRegistry:
    """All metrics of this service: of every process that shares the folder, else of this one."""
    folder = os.environ.get(FOLDER)
    whole = CollectorRegistry()
    if folder:
        metric_slots.tidy(Path(folder))
        whole.register(SharedMetrics(Path(folder)))
    else:
        whole.register(REGISTRY)
    whole.register(RowMetrics())
    return whole


class SharedMetrics:
    """A collector of what all processes wrote into the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        files = sorted(path for path in self._folder.glob("*.db") if _is_begun(path))
        mine = [str(path) for path in files if os.access(path, os.R_OK)]
        if len(mine) < len(files):
            log.warning(
                "metrics: %d file(s) are another user's and left out; run manage.py as the service's user",
                len(files) - len(mine),
            )
        found: Iterable[Metric] = MultiProcessCollector.merge(mine)
        return found


def _is_begun(file: Path) -> bool:
    """False for one whose process is making it just now or found no room for it, and for one that is gone."""
    try:
        return file.stat().st_size > 0
    except FileNotFoundError:
        return False


@metrics
@never_cache
@require_safe
def scrape(request: HttpRequest) -> HttpResponse:
    """GET /metrics"""
    if not may_read(request):
        answer: HttpResponse = problem_response(Refusal("metrics_token_wrong", 401))
        answer["WWW-Authenticate"] = 'Bearer realm="metrics"'
        return answer
    return HttpResponse(generate_latest(registry()), content_type=CONTENT_TYPE_LATEST)
