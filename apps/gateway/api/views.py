"""REST: which backend a call would get, and why (GW-03)."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.clock import utc_now
from apps.core.errors import FieldError, Invalid, named_by
from apps.gateway.api.shapes import RouteTestQuery, RouteTestShape
from apps.gateway.destinations import Asked, foretell
from apps.gateway.plane.core.choice import Pins
from apps.routing.models import ModelRoute
from apps.tenants.scope import pick_tenant, viewer_of
from apps.tenants.selectors import key_by_id


class RouteTest(GenericAPIView[Any]):
    """GET /api/v1/model-routes/test?model=&tenant=&key=&version=&backend=&session=&user=&address="""

    scope = scopes.TENANT
    serializer_class = RouteTestShape
    queryset = ModelRoute.objects.none()
    pagination_class = None

    @extend_schema(
        tags=["routes"], operation_id="test_route", parameters=[RouteTestQuery], responses=RouteTestShape
    )
    def get(self, request: Request) -> Response:
        """Which backend a call of this model would get, with every route and replica and its reason. Nothing
        is called."""
        viewer = viewer_of(request.user)
        query = RouteTestQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        tenant = pick_tenant(viewer, given.get("tenant"), to_create=False)
        with named_by("key", given.get("key")):
            key = key_by_id(viewer, given["key"]) if "key" in given else None
        if key is not None and key.tenant_id != tenant.pk:
            raise Invalid([FieldError("key", "of_another_tenant", key.public_id)])
        pins = Pins(given.get("version", ""), given.get("backend", ""), given.get("session", ""))
        asked = Asked(tenant, given["model"], key, pins, given.get("user", ""), given.get("address", ""))
        return Response(foretell(viewer, asked, utc_now()))
