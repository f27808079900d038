"""Addresses of external engines (GW-19): operators only. A key goes in and never comes out."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.bodies import body_of
from apps.routing import selectors, services
from apps.routing.api import shapes
from apps.routing.describing import describe_external_engine
from apps.routing.models import ExternalEngine
from apps.tenants.scope import viewer_of


class ExternalEngineList(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = shapes.ExternalEngineShape
    queryset = ExternalEngine.objects.none()

    @extend_schema(
        tags=["external engines"],
        operation_id="list_external_engines",
        responses=shapes.ExternalEngineShape(many=True),
    )
    def get(self, request: Request) -> Response:
        """Engines outside of this cluster that routes may lead to."""
        rows = selectors.external_engines(viewer_of(request.user)).order_by("name", "pk")
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response([describe_external_engine(row) for row in page])

    @extend_schema(
        tags=["external engines"],
        operation_id="create_external_engine",
        request=shapes.ExternalEngineBody,
        responses={201: shapes.ExternalEngineShape},
    )
    def post(self, request: Request) -> Response:
        """Add an engine; routes lead to it once they are made."""
        engine = services.create_external_engine(actor=viewer_of(request.user), body=body_of(request))
        return Response(describe_external_engine(engine), status=status.HTTP_201_CREATED)


class ExternalEngineDetail(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = shapes.ExternalEngineShape
    pagination_class = None

    @extend_schema(
        tags=["external engines"],
        operation_id="read_external_engine",
        responses=shapes.ExternalEngineShape,
    )
    def get(self, request: Request, engine_id: str) -> Response:
        """One engine."""
        engine = selectors.external_engine_by_id(viewer_of(request.user), engine_id)
        return Response(describe_external_engine(engine))

    @extend_schema(
        tags=["external engines"],
        operation_id="change_external_engine",
        request=shapes.ExternalEngineChanges,
        responses=shapes.ExternalEngineShape,
    )
    def put(self, request: Request, engine_id: str) -> Response:
        """Change what is sent; an empty api_key takes the key away."""
        viewer = viewer_of(request.user)
        engine = selectors.external_engine_by_id(viewer, engine_id)
        changed = services.update_external_engine(actor=viewer, engine=engine, body=body_of(request))
        return Response(describe_external_engine(changed))

    @extend_schema(tags=["external engines"], operation_id="delete_external_engine", responses={204: None})
    def delete(self, request: Request, engine_id: str) -> Response:
        """Remove the engine and the routes that lead to it."""
        viewer = viewer_of(request.user)
        engine = selectors.external_engine_by_id(viewer, engine_id)
        services.delete_external_engine(actor=viewer, engine=engine)
        return Response(status=status.HTTP_204_NO_CONTENT)
