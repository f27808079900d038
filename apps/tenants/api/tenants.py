"""Addresses of tenants and their members."""

from typing import Any

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.clock import utc_now
from apps.core.errors import FieldError, Forbidden, Invalid
from apps.tenants import selectors, services
from apps.tenants.api import shapes
from apps.tenants.models import Membership, Tenant, User
from apps.tenants.scope import MANAGES_ALL, Viewer, viewer_of
from apps.tenants.services.tenants import SHARING


class TenantList(GenericAPIView[Any]):
    scope = scopes.TENANT
    queryset = Tenant.objects.none()  # for the schema; rows come from selectors
    serializer_class = shapes.TenantShape

    @extend_schema(tags=["people"], operation_id="list_tenants", responses=shapes.TenantShape(many=True))
    def get(self, request: Request) -> Response:
        """The tenants that one belongs to; all of them for an operator."""
        viewer = viewer_of(request.user)
        page = self.paginate_queryset(selectors.tenants(viewer).order_by("slug"))
        return self.get_paginated_response(
            shapes.TenantShape(page, many=True, context={"viewer": viewer}).data
        )

    @extend_schema(
        tags=["people"],
        operation_id="create_tenant",
        request=shapes.NewTenantBody,
        responses={201: shapes.TenantShape},
    )
    def post(self, request: Request) -> Response:
        """Make a tenant (operators)."""
        viewer = viewer_of(request.user)
        if not viewer.is_operator:
            raise Forbidden
        tenant = services.create_tenant(actor=viewer, **shapes.NewTenantBody.read(request))
        shape = shapes.TenantShape(tenant, context={"viewer": viewer})
        return Response(shape.data, status=status.HTTP_201_CREATED)


class TenantDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.TenantShape
    pagination_class = None

    @extend_schema(tags=["people"], operation_id="read_tenant", responses=shapes.TenantShape)
    def get(self, request: Request, tenant_id: str) -> Response:
        """One tenant with its quota."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        return Response(shapes.TenantShape(tenant, context={"viewer": viewer}).data)

    @extend_schema(
        tags=["people"],
        operation_id="change_tenant",
        request=shapes.TenantChangesBody,
        responses=shapes.TenantShape,
    )
    def patch(self, request: Request, tenant_id: str) -> Response:
        """Change name, quota, lending or weight, suspend or resume (operators)."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        if not viewer.is_operator:
            raise Forbidden
        asked = shapes.TenantChangesBody.read(request)
        with transaction.atomic():
            services.change_tenant(
                actor=viewer,
                tenant=tenant,
                name=asked.get("name"),
                quota=asked.get("quota"),
                sharing={name: asked[name] for name in SHARING if name in asked},
            )
            if asked.get("status") == "suspended":
                reason = asked.get("suspended_reason", "")
                services.suspend_tenant(actor=viewer, tenant=tenant, reason=reason)
            elif asked.get("status") == "active":
                services.resume_tenant(actor=viewer, tenant=tenant)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        return Response(shapes.TenantShape(tenant, context={"viewer": viewer}).data)


class MemberList(GenericAPIView[Any]):
    scope = scopes.TENANT
    queryset = Membership.objects.none()  # for the schema; rows come from selectors
    serializer_class = shapes.MemberShape

    @extend_schema(tags=["people"], operation_id="list_members", responses=shapes.MemberShape(many=True))
    def get(self, request: Request, tenant_id: str) -> Response:
        """The members of a tenant; a mere member sees themselves only."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        page = self.paginate_queryset(selectors.members(viewer, tenant))
        return self.get_paginated_response(shapes.MemberShape(page, many=True).data)

    @extend_schema(
        tags=["people"],
        operation_id="add_member",
        request=shapes.NewMemberBody,
        responses={201: shapes.MemberShape},
    )
    def post(self, request: Request, tenant_id: str) -> Response:
        """Add a person (operators, owners, admins); with a password the person is created first."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        if not viewer.is_operator and viewer.roles[tenant.pk] not in MANAGES_ALL:
            raise Forbidden
        asked = shapes.NewMemberBody.read(request)
        with transaction.atomic():
            user = _person(viewer, asked)
            membership = services.add_member(actor=viewer, tenant=tenant, user=user, role=asked["role"])
        return Response(shapes.MemberShape(membership).data, status=status.HTTP_201_CREATED)


class MemberDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.MemberShape
    pagination_class = None

    @extend_schema(
        tags=["people"], operation_id="change_role", request=shapes.RoleBody, responses=shapes.MemberShape
    )
    def patch(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """Give a member another role, at most one's own."""
        viewer, membership = self._membership(request, tenant_id, user_id)
        asked = shapes.RoleBody.read(request)
        changed = services.change_role(actor=viewer, membership=membership, role=asked["role"], now=utc_now())
        return Response(shapes.MemberShape(changed).data)

    @extend_schema(tags=["people"], operation_id="remove_member", responses={204: None})
    def delete(self, request: Request, tenant_id: str, user_id: str) -> Response:
        """End a membership; the person's keys of this tenant end with it."""
        viewer, membership = self._membership(request, tenant_id, user_id)
        services.remove_member(actor=viewer, membership=membership, now=utc_now())
        return Response(status=status.HTTP_204_NO_CONTENT)

    @staticmethod
    def _membership(request: Request, tenant_id: str, user_id: str) -> tuple[Viewer, Any]:
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        return viewer, selectors.membership_of(viewer, tenant, user_id)


def _person(actor: Viewer, asked: dict[str, Any]) -> User:
    if asked.get("password"):
        return services.create_user(actor=actor, username=asked["username"], password=asked["password"])
    user = User.objects.filter(username=asked["username"]).first()
    if user is None:
        raise Invalid([FieldError("username", "no_such_user", asked["username"])])
    return user
