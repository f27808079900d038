"""Addresses of sign-in."""

from typing import Any

from django.contrib.auth import login, logout
from django.middleware.csrf import get_token
from django.utils.decorators import method_decorator
from django.views.decorators.debug import sensitive_variables
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.core import scopes
from apps.core.clock import utc_now
from apps.tenants import presence, selectors, services, sign_in
from apps.tenants.api import shapes
from apps.tenants.scope import viewer_of


class PublicView(APIView):
    """Asks for no credential, so that an outdated one does not stand in the way of a new one."""

    scope = scopes.PUBLIC
    authentication_classes: Any = []
    permission_classes: Any = []


class Token(PublicView):
    @extend_schema(
        tags=["sign-in"],
        request=shapes.SignInBody,
        responses=shapes.TokensShape,
        auth=[],
        operation_id="sign_in",
    )
    @method_decorator(sensitive_variables("given"))
    def post(self, request: Request) -> Response:
        """Access and refresh token for a user name and a password. 401 for a pair that does not
        match, 429 after too many failures."""
        given = shapes.SignInBody.read(request)
        user = sign_in.verify(request._request, given["username"], given["password"])
        return _private(Response(sign_in.issue_tokens(request._request, user)))


class TokenRefresh(PublicView):
    @extend_schema(
        tags=["sign-in"],
        request=shapes.RefreshBody,
        responses=shapes.AccessShape,
        auth=[],
        operation_id="refresh_token",
    )
    def post(self, request: Request) -> Response:
        """A new access token for a refresh token."""
        given = shapes.RefreshBody.read(request)
        return _private(Response(sign_in.refresh_access(given["refresh"])))


class Session(PublicView):
    @extend_schema(
        tags=["sign-in"],
        request=shapes.SignInBody,
        responses=shapes.MeShape,
        auth=[],
        operation_id="open_session",
    )
    @method_decorator(sensitive_variables("given"))
    def post(self, request: Request) -> Response:
        """Sign in with a session cookie, as browsers do."""
        given = shapes.SignInBody.read(request)
        user = sign_in.verify(request._request, given["username"], given["password"])
        login(request._request, user)
        get_token(request._request)  # the cookie that later writes of this session must echo
        return _private(Response(shapes.MeShape(user).data))


class SessionEnd(APIView):
    scope = scopes.SIGNED_IN

    @extend_schema(tags=["sign-in"], request=None, responses={204: None}, operation_id="close_session")
    def post(self, request: Request) -> Response:
        """End the session, or the tokens that the request came with."""
        viewer = viewer_of(request.user)
        token: Any = request.auth
        if token is not None:
            session = selectors.session_by_id(viewer, str(token.get(presence.MARK, "")))
            services.end_session(actor=viewer, session=session, now=utc_now())
        logout(request._request)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _private(response: Response) -> Response:
    response["Cache-Control"] = "no-store"
    return response
