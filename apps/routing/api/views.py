"""Addresses of model routes (GW-16) and endpoints (SVC-16). External engines: external.py."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes, texts
from apps.core.bodies import body_of
from apps.core.clock import utc_now
from apps.routing import selectors, services
from apps.routing.api import shapes
from apps.routing.describing import describe_endpoint, describe_route
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.tenants.scope import viewer_of
from apps.workloads.selectors import engine_of, unreachable_tasks

_WARNINGS_MAX = 5


def _show_route(route: ModelRoute) -> dict[str, Any]:
    group, external = route.group, route.external
    first = None if group is None else next(iter(group.tasks.all()), None)
    engine = engine_of(first) if first else ""
    skipped = [] if group is None else unreachable_tasks(group)
    return describe_route(route, engine) | {
        "group_id": None if group is None else group.public_id,
        "external": None if external is None else external.name,
        "tenant": route.tenant.slug,
        "warnings": [texts.say("task_without_port", {"name": task.name}) for task in skipped[:_WARNINGS_MAX]],
    }


class RouteList(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.RouteShape
    queryset = ModelRoute.objects.none()

    @extend_schema(tags=["routes"], operation_id="list_routes", responses=shapes.RouteShape(many=True))
    def get(self, request: Request) -> Response:
        """Which model name leads to which group."""
        rows = selectors.routes(viewer_of(request.user)).prefetch_related("group__tasks")
        page = self.paginate_queryset(rows.order_by("model_name", "priority", "pk")) or []
        return self.get_paginated_response([_show_route(route) for route in page])

    @extend_schema(
        tags=["routes"],
        operation_id="create_route",
        request=shapes.NewRouteBody,
        responses={201: shapes.RouteShape},
    )
    def post(self, request: Request) -> Response:
        """One more route of a model name: to another group, or (operators) to an external engine."""
        route = services.add_route(actor=viewer_of(request.user), body=body_of(request))
        return Response(_show_route(route), status=status.HTTP_201_CREATED)


class RouteDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.RouteShape
    pagination_class = None

    @extend_schema(tags=["routes"], operation_id="read_route", responses=shapes.RouteShape)
    def get(self, request: Request, route_id: str) -> Response:
        """One route."""
        return Response(_show_route(selectors.route_by_id(viewer_of(request.user), route_id)))

    @extend_schema(
        tags=["routes"],
        operation_id="change_route",
        request=shapes.RouteBody,
        responses=shapes.RouteShape,
    )
    def put(self, request: Request, route_id: str) -> Response:
        """Change weight, priority, balancing, version, sticky or active; what is not sent stays."""
        viewer = viewer_of(request.user)
        route = selectors.route_by_id(viewer, route_id, manage=True)
        return Response(_show_route(services.update_route(actor=viewer, route=route, body=body_of(request))))

    @extend_schema(tags=["routes"], operation_id="delete_route", responses={204: None})
    def delete(self, request: Request, route_id: str) -> Response:
        """Remove the route; what it leads to goes on."""
        viewer = viewer_of(request.user)
        route = selectors.route_by_id(viewer, route_id, manage=True)
        services.delete_route(actor=viewer, route=route)
        return Response(status=status.HTTP_204_NO_CONTENT)


class EndpointList(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.EndpointShape
    queryset = InferenceEndpoint.objects.none()

    @extend_schema(
        tags=["endpoints"], operation_id="list_endpoints", responses=shapes.EndpointShape(many=True)
    )
    def get(self, request: Request) -> Response:
        """Endpoints, with the display prefix of their keys only."""
        rows = selectors.endpoints(viewer_of(request.user)).order_by("name", "pk")
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response([describe_endpoint(row, row.group) for row in page])


class EndpointDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.EndpointShape
    pagination_class = None

    @extend_schema(tags=["endpoints"], operation_id="read_endpoint", responses=shapes.EndpointShape)
    def get(self, request: Request, endpoint_id: str) -> Response:
        """One endpoint."""
        endpoint = selectors.endpoint_by_id(viewer_of(request.user), endpoint_id)
        return Response(describe_endpoint(endpoint, endpoint.group))

    @extend_schema(
        tags=["endpoints"],
        operation_id="change_endpoint",
        request=shapes.EndpointBody,
        responses=shapes.EndpointOnceShape,
    )
    def put(self, request: Request, endpoint_id: str) -> Response:
        """Change name, port or external_port; `rotate_key: true` also issues a new key, shown once."""
        viewer = viewer_of(request.user)
        endpoint = selectors.endpoint_by_id(viewer, endpoint_id, manage=True)
        changed, plain = services.update_endpoint(
            actor=viewer, endpoint=endpoint, body=body_of(request), now=utc_now()
        )
        answer = describe_endpoint(changed, endpoint.group)
        if plain is None:
            return Response(answer)
        return Response(answer | {"api_key": plain}, headers={"Cache-Control": "no-store"})

    @extend_schema(tags=["endpoints"], operation_id="delete_endpoint", responses={204: None})
    def delete(self, request: Request, endpoint_id: str) -> Response:
        """Remove the endpoint and end its key; the group and its route stay."""
        viewer = viewer_of(request.user)
        endpoint = selectors.endpoint_by_id(viewer, endpoint_id, manage=True)
        services.delete_endpoint(actor=viewer, endpoint=endpoint, now=utc_now())
        return Response(status=status.HTTP_204_NO_CONTENT)
