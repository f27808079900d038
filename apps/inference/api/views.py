"""Addresses of services (task groups) and their tasks (SVC-01, SVC-12, SVC-13, LIFE-04)."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.bodies import body_of
from apps.core.clock import utc_now
from apps.inference import selectors, services
from apps.inference.api import shapes
from apps.inference.api.dry_run import DRY_RUN, DryRunShape, is_dry_run
from apps.inference.api.filters import GroupFilter
from apps.inference.dry_run import try_service
from apps.tenants.scope import get_manageable, viewer_of
from apps.workloads import selectors as work
from apps.workloads.models import Event, TaskGroup


class GroupList(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.GroupShape
    filterset_class = GroupFilter
    queryset = TaskGroup.objects.none()

    @extend_schema(tags=["services"], operation_id="list_services", responses=shapes.GroupShape(many=True))
    def get(self, request: Request) -> Response:
        """Services in sight, newest first."""
        viewer = viewer_of(request.user)
        page = self.paginate_queryset(self.filter_queryset(work.groups(viewer))) or []
        return self.get_paginated_response(selectors.describe_many(viewer, page, now=utc_now()))

    @extend_schema(
        tags=["services"],
        operation_id="create_service",
        request=shapes.NewGroupBody,
        responses={200: DryRunShape, 201: shapes.NewGroupShape},
        parameters=[DRY_RUN],
        filters=False,
    )
    def post(self, request: Request) -> Response:
        """Create a group with its tasks, its route and, with `enable_api`, an endpoint with its key. With
        `dry_run` nothing is made: the answer says where its tasks would go, or why they would wait."""
        viewer, now = viewer_of(request.user), utc_now()
        if is_dry_run(request):
            return Response(try_service(actor=viewer, body=body_of(request), now=now))
        created = services.create_service(actor=viewer, body=body_of(request), now=now)
        group = work.group_by_id(viewer, created.group.public_id)
        answer = selectors.describe(viewer, group, now=now) | {"api_key": created.api_key_plain}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class GroupDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.GroupShape
    pagination_class = None

    @extend_schema(tags=["services"], operation_id="read_service", responses=shapes.GroupShape)
    def get(self, request: Request, group_id: str) -> Response:
        """One service with its tasks, routes and endpoint."""
        viewer = viewer_of(request.user)
        return Response(selectors.describe(viewer, work.group_by_id(viewer, group_id), now=utc_now()))

    @extend_schema(
        tags=["services"], operation_id="delete_service", request=None, responses={202: shapes.DeletedShape}
    )
    def delete(self, request: Request, group_id: str) -> Response:
        """Stop and remove a service. Cards and ports are freed when its nodes confirm; repeatable."""
        viewer = viewer_of(request.user)
        # Groups already being deleted too, so that a repeat is answered and not a riddle (SVC-12).
        group = get_manageable(viewer, TaskGroup.objects.all(), group_id)
        done = services.delete_service(actor=viewer, group=group, now=utc_now())
        then = "delete_waits_for_nodes" if done.stopping else "delete_complete"
        answer = {
            "id": group.public_id,
            "deleted": True,
            "already": done.already,
            "tasks_stopping": done.stopping,
            "routes_removed": done.routes_removed,
            "endpoint_removed": done.endpoint_removed,
            "next": selectors.tell(then, {"tasks": done.stopping}),
        }
        return Response(answer, status=status.HTTP_202_ACCEPTED)


class GroupEvents(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.EventShape
    queryset = Event.objects.none()

    @extend_schema(
        tags=["services"], operation_id="list_service_events", responses=shapes.EventShape(many=True)
    )
    def get(self, request: Request, group_id: str) -> Response:
        """What happened to it, oldest first."""
        viewer = viewer_of(request.user)
        group = work.group_by_id(viewer, group_id)
        rows = work.events(viewer).filter(group=group).select_related("task").order_by("at", "pk")
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response(selectors.describe_events(viewer, page))


class TaskDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.TaskShape
    pagination_class = None

    @extend_schema(tags=["services"], operation_id="read_task", responses=shapes.TaskShape)
    def get(self, request: Request, task_id: str) -> Response:
        """One task: state, phase, attempt, node, reasons."""
        viewer = viewer_of(request.user)
        return Response(selectors.describe_one_task(viewer, work.task_by_id(viewer, task_id)))
