"""REST: ask for a task's files, look how far they are, get them (AGENT-12)."""

import base64
from typing import Any
from urllib.parse import quote

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponseBase, StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core.bodies import body_of
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.scopes import TENANT
from apps.files import selectors, services, store
from apps.files.api.serializers import FileRequestBody, FileRequestShape
from apps.files.models import FileRequest
from apps.files.ranges import Unsatisfiable, parse_range
from apps.tenants.scope import viewer_of


class FileRequests(GenericAPIView[Any]):
    """/api/v1/file-requests"""

    scope = TENANT
    serializer_class = FileRequestShape
    queryset = FileRequest.objects.none()

    @extend_schema(
        operation_id="list_file_requests",
        parameters=[OpenApiParameter("task", str, description="of this task only")],
        responses=FileRequestShape(many=True),
        tags=["files"],
    )
    def get(self, request: Request) -> Response:
        """Requests in sight, newest first."""
        rows = selectors.requests(viewer_of(request.user))
        task = request.query_params.get("task", "")
        if task:
            rows = rows.filter(task__public_id=task) if task.isprintable() else rows.none()
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response([selectors.describe(row) for row in page])

    @extend_schema(
        operation_id="request_file",
        request=FileRequestBody,
        responses={202: FileRequestShape},
        tags=["files"],
    )
    def post(self, request: Request) -> Response:
        """Ask the task's node for a folder's list or a file, then poll the request until it is ready."""
        row = services.request_file(actor=viewer_of(request.user), body=body_of(request), now=utc_now())
        return Response(selectors.describe(row), status=status.HTTP_202_ACCEPTED)


class OneFileRequest(GenericAPIView[Any]):
    """/api/v1/file-requests/{id}"""

    scope = TENANT
    serializer_class = FileRequestShape
    pagination_class = None

    @extend_schema(operation_id="read_file_request", responses=FileRequestShape, tags=["files"])
    def get(self, request: Request, request_id: str) -> Response:
        """How far it is; a list's entries; a file's size and sha256."""
        row = selectors.request_by_id(viewer_of(request.user), request_id)
        return Response(selectors.describe(row))

    @extend_schema(operation_id="delete_file_request", request=None, responses={204: None}, tags=["files"])
    def delete(self, request: Request, request_id: str) -> Response:
        """Drop it with what came for it; its room is free at once."""
        viewer = viewer_of(request.user)
        row = selectors.request_by_id(viewer, request_id, manage=True)
        services.delete_request(actor=viewer, row=row)
        return Response(status=status.HTTP_204_NO_CONTENT)


class Bytes(BaseRenderer):
    """Lets a client ask for bytes; a refusal is JSON all the same."""

    media_type = "application/octet-stream"
    format = "bytes"

    def render(self, data: Any, accepted_media_type: Any = None, renderer_context: Any = None) -> bytes:
        return JSONRenderer().render(data)


class FileContent(APIView):
    """/api/v1/file-requests/{id}/content"""

    scope = TENANT
    renderer_classes = [JSONRenderer, Bytes]

    @extend_schema(
        operation_id="read_file_content",
        parameters=[
            OpenApiParameter("Range", str, OpenApiParameter.HEADER, description="bytes=FIRST-LAST"),
            OpenApiParameter(
                "If-Range", str, OpenApiParameter.HEADER, description="the ETag of the first part"
            ),
        ],
        responses={
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            (206, "application/octet-stream"): OpenApiTypes.BINARY,
        },
        tags=["files"],
    )
    def get(self, request: Request, request_id: str) -> HttpResponseBase:
        """The file, or a range of it; `Repr-Digest` and `ETag` tell the sha256 of the whole."""
        row = selectors.request_by_id(viewer_of(request.user), request_id)
        pieces, size, tag = selectors.pieces_of(row), row.size or 0, f'"{row.sha256}"'
        part = None
        if request.headers.get("If-Range", tag) == tag:  # else it is another file: from the beginning
            try:
                part = parse_range(request.headers.get("Range", ""), size)
            except Unsatisfiable:
                raise Refusal("range_not_satisfiable", 416, size=size) from None
        first, last = part or (0, size)
        under_asgi = isinstance(request._request, ASGIRequest)  # each server streams its own kind only
        read = store.read_async if under_asgi else store.read
        answer = StreamingHttpResponse(
            read(pieces, first, last),
            status=206 if part else 200,
            content_type="application/octet-stream",
            headers={
                "Content-Length": str(last - first),
                "Accept-Ranges": "bytes",
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name_of(row), safe='')}",
                "Cache-Control": "private, no-store",
                "ETag": tag,
                "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(row.sha256)).decode()}:",
                "X-Content-SHA256": row.sha256,
            },
        )
        if part:
            answer["Content-Range"] = f"bytes {first}-{last - 1}/{size}"
        return answer


def name_of(row: FileRequest) -> str:
    """The file's own name, for where it is saved."""
    return row.path.rstrip("/").rsplit("/", 1)[-1] or "file"
