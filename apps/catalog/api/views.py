"""Addresses of the model catalog: everybody signed in reads, operators add."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.catalog import services
from apps.catalog.api import shapes
from apps.catalog.models import CatalogModel
from apps.core import scopes
from apps.core.bodies import body_of
from apps.tenants.scope import viewer_of


class ModelList(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.ModelShape
    queryset = CatalogModel.objects.none()

    @extend_schema(tags=["models"], operation_id="list_models", responses=shapes.ModelShape(many=True))
    def get(self, request: Request) -> Response:
        """Models that operators registered, for the create form."""
        page = self.paginate_queryset(CatalogModel.objects.order_by("name"))
        return self.get_paginated_response(shapes.ModelShape(page, many=True).data)

    @extend_schema(
        tags=["models"],
        operation_id="create_model",
        request=shapes.NewModelBody,
        responses={201: shapes.ModelShape},
    )
    def post(self, request: Request) -> Response:
        """Register a model (operators)."""
        model = services.create_model(actor=viewer_of(request.user), body=body_of(request))
        return Response(shapes.ModelShape(model).data, status=status.HTTP_201_CREATED)
