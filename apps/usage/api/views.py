"""REST: usage by what one asks for (GW-12), card time by service (GW-18), the rows behind them as tables."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.http import HttpResponseBase, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.clock import utc_now
from apps.core.scopes import TENANT
from apps.tenants.scope import viewer_of
from apps.usage.api.shapes import (
    DaysQuery,
    ExportQuery,
    GroupTimeShape,
    UsageQuery,
    UseShape,
    read_days,
    read_usage,
)
from apps.usage.card_times import card_times, time_by_group, write_csv
from apps.usage.exports import RECORD_COLUMNS, TOTAL_COLUMNS, record_rows, total_rows
from apps.usage.models import CardTime, UsageTotal
from apps.usage.sums import Use, use_by
from apps.usage.tables import as_csv, as_json


class Table(BaseRenderer):
    """Lets a client ask for a table; a refusal is JSON all the same."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return JSONRenderer().render(data)


def _attached(lines: Iterator[str], kind: str, name: str) -> HttpResponseBase:
    """A table that is written while it is read, to be kept by nobody between."""
    return StreamingHttpResponse(
        lines,
        content_type=f"{kind}; charset=utf-8",
        headers={
            "Content-Disposition": f'attachment; filename="{name}"',
            "Cache-Control": "private, no-store",
        },
    )


class Uses(GenericAPIView[Any]):
    """GET /api/v1/usage?from=&to=&by=&tenant=&member=&key=&model="""

    scope = TENANT
    serializer_class = UseShape
    queryset = UsageTotal.objects.none()

    @extend_schema(
        operation_id="list_usage", parameters=[UsageQuery], responses=UseShape(many=True), tags=["usage"]
    )
    def get(self, request: Request) -> Response:
        """Requests and tokens in sight over some days of UTC, by model, key, member, service, tenant, day or
        hour; most tokens first, moments in their order."""
        first, last, only, by = read_usage(UsageQuery, request.query_params, utc_now().date())
        found = use_by(viewer_of(request.user), first, last, by, only)
        page = self.paginate_queryset(found) or []
        return self.get_paginated_response([_shown(use) for use in page])


def _shown(use: Use) -> dict[str, Any]:
    value, prefix = (*use.value, "")[:2]
    return {**asdict(use), "value": value, "key_prefix": prefix}


class _Export(APIView):
    scope = TENANT
    rows: Any
    columns: tuple[str, ...]
    name: str

    def answer(self, request: Request, form: str) -> HttpResponseBase:
        first, last, only, _ = read_usage(ExportQuery, request.query_params, utc_now().date())
        rows = type(self).rows(viewer_of(request.user), first, last, only)
        write, kind = (as_csv, "text/csv") if form == "csv" else (as_json, "application/json")
        name = f"{self.name}-{first.isoformat()}-{last.isoformat()}.{form}"
        return _attached(write(self.columns, rows), kind, name)


class _Records(_Export):
    rows, columns, name = staticmethod(record_rows), RECORD_COLUMNS, "usage-records"


class _Totals(_Export):
    rows, columns, name = staticmethod(total_rows), TOTAL_COLUMNS, "usage-days"


def _described(operation: str, kind: str) -> Any:
    return extend_schema(
        operation_id=operation,
        parameters=[ExportQuery],
        responses={(200, kind): OpenApiTypes.STR},
        tags=["usage"],
    )


class RecordsAsTable(_Records):
    """GET /api/v1/usage/records.csv"""

    renderer_classes = [JSONRenderer, Table]

    @_described("export_usage_records", "text/csv")
    def get(self, request: Request) -> HttpResponseBase:
        """Every record of those days as CSV, oldest first, as far back as records are kept."""
        return self.answer(request, "csv")


class RecordsAsJson(_Records):
    """GET /api/v1/usage/records.json"""

    @_described("export_usage_records_json", "application/json")
    def get(self, request: Request) -> HttpResponseBase:
        """The same as one JSON array."""
        return self.answer(request, "json")


class TotalsAsTable(_Totals):
    """GET /api/v1/usage/days.csv"""

    renderer_classes = [JSONRenderer, Table]

    @_described("export_usage_days", "text/csv")
    def get(self, request: Request) -> HttpResponseBase:
        """Every day's sums by tenant, member, key, model and service, as CSV."""
        return self.answer(request, "csv")


class TotalsAsJson(_Totals):
    """GET /api/v1/usage/days.json"""

    @_described("export_usage_days_json", "application/json")
    def get(self, request: Request) -> HttpResponseBase:
        """The same as one JSON array."""
        return self.answer(request, "json")


class CardTimes(GenericAPIView[Any]):
    """GET /api/v1/usage/card-time?from=&to="""

    scope = TENANT
    serializer_class = GroupTimeShape
    queryset = CardTime.objects.none()

    @extend_schema(
        operation_id="list_card_time",
        parameters=[DaysQuery],
        responses=GroupTimeShape(many=True),
        tags=["usage"],
    )
    def get(self, request: Request) -> Response:
        """Card seconds of each service and run in sight over some days, most first."""
        first, last = read_days(request.query_params, utc_now().date())
        found = time_by_group(viewer_of(request.user), first, last)
        page = self.paginate_queryset(found) or []
        return self.get_paginated_response([asdict(one) for one in page])


class CardTimesAsTable(APIView):
    """GET /api/v1/usage/card-time.csv?from=&to="""

    scope = TENANT
    renderer_classes = [JSONRenderer, Table]

    @extend_schema(
        operation_id="export_card_time",
        parameters=[DaysQuery],
        responses={(200, "text/csv"): OpenApiTypes.STR},
        tags=["usage"],
    )
    def get(self, request: Request) -> HttpResponseBase:
        """The rows behind it as CSV: one a day, attempt and kind."""
        first, last = read_days(request.query_params, utc_now().date())
        rows = card_times(viewer_of(request.user), first, last)
        name = f"card-time-{first.isoformat()}-{last.isoformat()}.csv"
        return _attached(write_csv(rows.iterator(chunk_size=1000)), "text/csv", name)
