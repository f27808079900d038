"""REST: the stored log of a task."""

from dataclasses import asdict

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.scopes import TENANT
from apps.streams.api.serializers import LogQuerySerializer, LogSerializer
from apps.streams.selectors import read_log
from apps.tenants.scope import viewer_of


class TaskLogs(APIView):
    """GET /api/v1/tasks/{id}/logs?attempt=&from=&to=&tail_lines="""

    scope = TENANT

    @extend_schema(
        operation_id="read_task_log", parameters=[LogQuerySerializer], responses=LogSerializer, tags=["tasks"]
    )
    def get(self, request: Request, task_id: str) -> Response:
        """The log of one attempt, at most LOG_READ_MAX_BYTES at once; another tenant's task is a 404."""
        query = LogQuerySerializer(data=request.query_params)
        query.is_valid(raise_exception=True)
        asked = query.validated_data
        piece = read_log(
            viewer_of(request.user),
            task_id,
            attempt=asked.get("attempt"),
            start=asked.get("from"),
            stop=asked.get("to"),
            tail_lines=asked.get("tail_lines"),
            max_bytes=settings.LOG_READ_MAX_BYTES,
        )
        return Response(asdict(piece))
