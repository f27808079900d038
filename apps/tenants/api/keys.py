"""Addresses of gateway keys. A key's value stands in the answer that makes it, and nowhere else."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.clock import utc_now
from apps.core.errors import FieldError, Invalid
from apps.tenants import selectors, services
from apps.tenants.api import shapes
from apps.tenants.models import ApiKey, Tenant, User
from apps.tenants.scope import Viewer, pick_tenant, viewer_of


class KeyList(GenericAPIView[Any]):
    scope = scopes.TENANT
    queryset = ApiKey.objects.none()  # for the schema; rows come from selectors
    serializer_class = shapes.KeyShape

    @extend_schema(tags=["keys"], operation_id="list_keys", responses=shapes.KeyShape(many=True))
    def get(self, request: Request) -> Response:
        """One's own keys, or those of the whole tenant for who may see it."""
        page = self.paginate_queryset(selectors.keys(viewer_of(request.user)))
        return self.get_paginated_response(shapes.KeyShape(page, many=True).data)

    @extend_schema(
        tags=["keys"],
        operation_id="issue_key",
        request=shapes.NewKeyBody,
        responses={201: shapes.KeyOnceShape},
    )
    def post(self, request: Request) -> Response:
        """Issue a key. The answer holds it once; who loses it rotates it."""
        viewer = viewer_of(request.user)
        asked = shapes.NewKeyBody.read(request)
        tenant = pick_tenant(viewer, asked.get("tenant"))
        key, plain = services.issue_key(
            actor=viewer,
            tenant=tenant,
            member=_holder(request, viewer, tenant, asked.get("member")),
            name=asked["name"],
            scopes=asked.get("scopes"),
            allowed_models=asked.get("allowed_models"),
            allowed_addresses=asked.get("allowed_addresses"),
            expires_at=asked.get("expires_at"),
            now=utc_now(),
        )
        return _once(key, plain, status.HTTP_201_CREATED)


class KeyDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.KeyShape
    pagination_class = None

    @extend_schema(tags=["keys"], operation_id="read_key", responses=shapes.KeyShape)
    def get(self, request: Request, key_id: str) -> Response:
        """One key, without its value."""
        key = selectors.key_by_id(viewer_of(request.user), key_id)
        return Response(shapes.KeyShape(key).data)

    @extend_schema(
        tags=["keys"], operation_id="change_key", request=shapes.KeyChangesBody, responses=shapes.KeyShape
    )
    def patch(self, request: Request, key_id: str) -> Response:
        """Change its name or limits; what is not sent stays. Gateways follow within two seconds."""
        viewer = viewer_of(request.user)
        key = selectors.key_by_id(viewer, key_id)
        changes = shapes.KeyChangesBody.read(request)
        changed = services.change_key(actor=viewer, key=key, changes=changes, now=utc_now())
        return Response(shapes.KeyShape(changed).data)

    @extend_schema(tags=["keys"], operation_id="revoke_key", responses={204: None})
    def delete(self, request: Request, key_id: str) -> Response:
        """Revoke it for good."""
        viewer = viewer_of(request.user)
        key = selectors.key_by_id(viewer, key_id)
        services.revoke_key(actor=viewer, key=key, now=utc_now())
        return Response(status=status.HTTP_204_NO_CONTENT)


class KeyRotation(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.KeyOnceShape
    pagination_class = None

    @extend_schema(
        tags=["keys"],
        operation_id="rotate_key",
        request=shapes.RotationBody,
        responses=shapes.KeyOnceShape,
    )
    def post(self, request: Request, key_id: str) -> Response:
        """A new value for the key; the present one ends at once, or works on for `overlap_seconds`."""
        viewer = viewer_of(request.user)
        key = selectors.key_by_id(viewer, key_id)
        overlap_s = shapes.RotationBody.read(request).get("overlap_seconds", 0)
        rotated, plain = services.rotate_key(actor=viewer, key=key, now=utc_now(), overlap_s=overlap_s)
        return _once(rotated, plain, status.HTTP_200_OK)


def _holder(request: Request, viewer: Viewer, tenant: Tenant, username: str | None) -> User:
    """The person the key is for. Somebody who is no member of the tenant is not told from nobody."""
    if username is None or username == request.user.get_username():
        holder: Any = request.user
        return holder
    found = User.objects.filter(username=username, memberships__tenant=tenant).first()
    if found is None:
        raise Invalid([FieldError("member", "not_a_member", username)])
    return found


def _once(key: ApiKey, plain: str, status_code: int) -> Response:
    shown = shapes.KeyOnceShape(key, context={"plain": plain}).data
    return Response(shown, status=status_code, headers={"Cache-Control": "no-store"})
