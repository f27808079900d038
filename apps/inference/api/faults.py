"""The address of a service's fault timeline (LIFE-06)."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.inference.api import shapes
from apps.inference.faults import describe_faults, faults_of
from apps.tenants.scope import viewer_of
from apps.workloads import selectors as work
from apps.workloads.models import Event


class GroupFaults(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.FaultShape
    queryset = Event.objects.none()

    @extend_schema(
        tags=["services"], operation_id="list_service_faults", responses=shapes.FaultShape(many=True)
    )
    def get(self, request: Request, group_id: str) -> Response:
        """Each failure and loss of a place: its cause, what was done, how long it took; newest first."""
        viewer = viewer_of(request.user)
        group = work.group_by_id(viewer, group_id)
        page = self.paginate_queryset(faults_of(viewer, group)) or []
        return self.get_paginated_response(describe_faults(viewer, list(page)))
