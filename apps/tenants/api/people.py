"""Addresses of people (TEN-10): invitations, new passwords, one's own account, sessions.

A link stands in the answer that makes it, and nowhere else.
"""

from typing import Any

from django.contrib.auth import update_session_auth_hash
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.clock import utc_now
from apps.core.errors import FieldError, Forbidden, Invalid, named_by
from apps.tenants import mailing, presence, selectors, services, sign_in
from apps.tenants.api import people_shapes as shapes
from apps.tenants.api.shapes import MeShape
from apps.tenants.api.sign_in import PublicView
from apps.tenants.models import OneTimeLink, SignedIn
from apps.tenants.scope import MANAGES_ALL, viewer_of


def _once(link: OneTimeLink, plain: str) -> Response:
    address = services.link_address(link.purpose, plain)
    shown = shapes.LinkOnceShape(
        link, context={"plain": plain, "address": address, "mailed": mailing.send_link(link, address)}
    )
    return Response(shown.data, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class InvitationList(GenericAPIView[Any]):
    scope = scopes.TENANT
    queryset = OneTimeLink.objects.none()
    serializer_class = shapes.LinkShape

    @extend_schema(tags=["people"], operation_id="list_invitations", responses=shapes.LinkShape(many=True))
    def get(self, request: Request, tenant_id: str) -> Response:
        """Invitations that nobody took yet (operators, owners, admins)."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        if not viewer.is_operator and viewer.roles[tenant.pk] not in MANAGES_ALL:
            raise Forbidden
        page = self.paginate_queryset(services.open_invitations(utc_now()).filter(tenant=tenant))
        return self.get_paginated_response(shapes.LinkShape(page, many=True).data)

    @extend_schema(
        tags=["people"],
        operation_id="invite",
        request=shapes.InvitationBody,
        responses={201: shapes.LinkOnceShape},
    )
    def post(self, request: Request, tenant_id: str) -> Response:
        """Invite somebody by a link that works once; it is sent where e-mail is configured."""
        viewer = viewer_of(request.user)
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        if not viewer.is_operator and viewer.roles[tenant.pk] not in MANAGES_ALL:
            raise Forbidden
        asked = shapes.InvitationBody.read(request)
        return _once(*services.invite(actor=viewer, tenant=tenant, now=utc_now(), **asked))


class InvitationDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.LinkShape
    pagination_class = None

    @extend_schema(tags=["people"], operation_id="withdraw_invitation", responses={204: None})
    def delete(self, request: Request, tenant_id: str, link_id: str) -> Response:
        """Withdraw an invitation; its link is not valid any more."""
        viewer, now = viewer_of(request.user), utc_now()
        tenant = selectors.tenant_by_id(viewer, tenant_id)
        link = selectors.invitation_by_id(viewer, link_id, now, tenant=tenant)
        services.withdraw_link(actor=viewer, link=link, now=now)
        return Response(status=status.HTTP_204_NO_CONTENT)


class InvitationTaking(PublicView):
    @extend_schema(
        tags=["sign-in"],
        operation_id="accept_invitation",
        request=shapes.AcceptBody,
        responses={201: shapes.PersonShape},
        auth=[],
    )
    @method_decorator(sensitive_variables("asked"))
    def post(self, request: Request) -> Response:
        """Become a person and a member by an invitation, with a name and a password of one's own."""
        asked = shapes.AcceptBody.read(request)
        user = services.accept_invitation(now=utc_now(), **asked)
        return Response(shapes.PersonShape(user).data, status=status.HTTP_201_CREATED)


class ResetOffer(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.LinkOnceShape
    pagination_class = None

    @extend_schema(
        tags=["people"],
        operation_id="offer_password_reset",
        request=None,
        responses={201: shapes.LinkOnceShape},
    )
    def post(self, request: Request, user_id: str) -> Response:
        """A link by which a person sets a new password: operators for anybody, owners for who stands in
        no tenant but theirs."""
        viewer = viewer_of(request.user)
        user = selectors.person_by_id(viewer, user_id)
        return _once(*services.offer_reset(actor=viewer, user=user, now=utc_now()))


class ResetTaking(PublicView):
    @extend_schema(
        tags=["sign-in"],
        operation_id="reset_password",
        request=shapes.ResetBody,
        responses={204: None},
        auth=[],
    )
    @method_decorator(sensitive_variables("asked"))
    def post(self, request: Request) -> Response:
        """Set a new password by a link; every session and token of the person ends."""
        asked = shapes.ResetBody.read(request)
        services.reset_password(now=utc_now(), **asked)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _mark(request: Request) -> str:
    """The session that this very request belongs to."""
    token: Any = request.auth
    if token is not None and hasattr(token, "get"):
        return str(token.get(presence.MARK, ""))
    return str(request._request.session.get(presence.MARK, ""))


class Account(GenericAPIView[Any]):
    scope = scopes.SIGNED_IN
    serializer_class = MeShape
    pagination_class = None

    @extend_schema(tags=["people"], responses=MeShape, operation_id="read_me")
    def get(self, request: Request) -> Response:
        """The signed-in person with their roles."""
        person: Any = request.user  # the scope lets nobody else in
        return Response(MeShape(person).data)

    @extend_schema(tags=["people"], operation_id="change_me", request=shapes.ProfileBody, responses=MeShape)
    def patch(self, request: Request) -> Response:
        """Save one's language and time zone; empty = as the browser says."""
        person: Any = request.user
        asked = shapes.ProfileBody.read(request)
        return Response(MeShape(services.change_profile(actor=viewer_of(person), user=person, **asked)).data)


class OwnPassword(GenericAPIView[Any]):
    scope = scopes.SIGNED_IN
    serializer_class = shapes.PasswordBody
    pagination_class = None

    @extend_schema(
        tags=["people"],
        operation_id="change_password",
        request=shapes.PasswordBody,
        responses={204: None},
    )
    @method_decorator(sensitive_variables("asked"))
    def post(self, request: Request) -> Response:
        """Change one's own password. Tokens end, sign in again; other browsers are signed out."""
        person: Any = request.user
        asked = shapes.PasswordBody.read(request)
        if not sign_in.confirm(request._request, person, asked["old_password"]):
            raise Invalid([FieldError("old_password", "wrong_password")])
        services.set_password(
            actor=viewer_of(person),
            user=person,
            password=asked["password"],
            verb="change_password",
            keep=_mark(request),
            now=utc_now(),
        )
        if request.auth is None:
            update_session_auth_hash(request._request, person)
        return Response(status=status.HTTP_204_NO_CONTENT)


class SessionList(GenericAPIView[Any]):
    scope = scopes.SIGNED_IN
    queryset = SignedIn.objects.none()
    serializer_class = shapes.SessionShape

    @extend_schema(
        tags=["people"],
        operation_id="list_sessions",
        responses=shapes.SessionShape(many=True),
        parameters=[OpenApiParameter("user", str, description="a person's id (operators)")],
    )
    def get(self, request: Request) -> Response:
        """Where one is signed in, last seen first; an operator names another person by `user`."""
        viewer = viewer_of(request.user)
        user_id = request.query_params.get("user", "")
        with named_by("user", user_id):
            rows = selectors.sessions(viewer, utc_now(), user_id=user_id)
        shape = shapes.SessionShape(self.paginate_queryset(rows), many=True, context={"mark": _mark(request)})
        return self.get_paginated_response(shape.data)


class SessionDetail(GenericAPIView[Any]):
    scope = scopes.SIGNED_IN
    serializer_class = shapes.SessionShape
    pagination_class = None

    @extend_schema(tags=["people"], operation_id="end_session", responses={204: None})
    def delete(self, request: Request, session_id: str) -> Response:
        """End a session at once, with its tokens: one's own; for operators anybody's. Repeatable."""
        viewer = viewer_of(request.user)
        session = selectors.session_by_id(viewer, session_id)
        services.end_session(actor=viewer, session=session, now=utc_now())
        return Response(status=status.HTTP_204_NO_CONTENT)


class OtherSessionsEnd(GenericAPIView[Any]):
    scope = scopes.SIGNED_IN
    serializer_class = shapes.EndedShape
    pagination_class = None

    @extend_schema(
        tags=["people"], operation_id="end_other_sessions", request=None, responses=shapes.EndedShape
    )
    def post(self, request: Request) -> Response:
        """End every session of one's own but the one that asks."""
        person: Any = request.user
        ended = services.end_sessions(actor=viewer_of(person), user=person, but=_mark(request), now=utc_now())
        return Response({"ended": ended})
