"""REST: card time by service, and its rows as a table (GW-18)."""

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
from apps.usage.api.shapes import DaysQuery, GroupTimeShape, read_days
from apps.usage.card_times import card_times, time_by_group, write_csv
from apps.usage.models import CardTime


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


class Table(BaseRenderer):
    """Lets a client ask for a table; a refusal is JSON all the same."""

    media_type = "text/csv"
    format = "csv"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return JSONRenderer().render(data)


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
        return StreamingHttpResponse(
            write_csv(rows.iterator(chunk_size=1000)),
            content_type="text/csv; charset=utf-8",
            headers={
                "Content-Disposition": f'attachment; filename="{name}"',
                "Cache-Control": "private, no-store",
            },
        )
