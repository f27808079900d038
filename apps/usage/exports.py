"""Usage as rows to take away (GW-12): every record, or every day's sums; scope first, few held at a time.

No cursor stays open between two lines: who reads slowly holds no connection's statement. Owns which columns
there are.
"""

from collections.abc import Iterator
from datetime import date
from typing import Any

from django.db.models import Q

from apps.tenants.scope import Viewer
from apps.usage.selectors import records
from apps.usage.sums import Only, bounds, each_day
from apps.usage.totals import ALIKE, SUMMED

CHUNK = 1000  # records that are held at once

RECORD_COLUMNS = (
    "request_id",
    "started_at",
    "path",
    "ending",
    "http_status",
    *ALIKE,
    "route_id",
    "task_id",
    "attempt",
    "stream",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "estimated",
    "ttft_ms",
    "duration_ms",
)
TOTAL_COLUMNS = ("day", *ALIKE, *SUMMED)

Row = tuple[object, ...]


def record_rows(viewer: Viewer, first: date, last: date, only: Only) -> Iterator[Row]:
    """RECORD_COLUMNS of each record that began in [first, last] (UTC), oldest first."""
    start, end = bounds(first, last)
    rows = only.of(records(viewer)).filter(started_at__gte=start, started_at__lt=end)
    wanted: Any = rows.order_by("started_at", "pk").values_list("pk", *RECORD_COLUMNS)
    after = Q()
    while found := list(wanted.filter(after)[:CHUNK]):
        for _, request_id, started_at, *rest in found:
            yield (request_id, started_at.isoformat(), *rest)
        pk, _, started_at = found[-1][:3]
        after = Q(started_at__gt=started_at) | Q(started_at=started_at, pk__gt=pk)


def total_rows(viewer: Viewer, first: date, last: date, only: Only) -> Iterator[Row]:
    """TOTAL_COLUMNS of each day in [first, last] (UTC), in the order of the days."""
    for day, use in each_day(viewer, first, last, only):
        yield (day.isoformat(), *use.value, *(getattr(use, name) for name in SUMMED))
