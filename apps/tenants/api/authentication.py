"""Who a bearer token stands for: a person who is still signed in where it was issued (TEN-10)."""

from typing import Any

from django.utils import translation
from rest_framework_simplejwt.authentication import JWTAuthentication
from rest_framework_simplejwt.exceptions import AuthenticationFailed

from apps.tenants import presence
from apps.tenants.models import User


class TokenAuthentication(JWTAuthentication):
    """Beyond signature, expiry, account and password: the session that it came from was not ended."""

    def authenticate(self, request: Any) -> Any:
        found = super().authenticate(request)
        user: Any = found[0] if found else None
        if user is not None and user.language and "Accept-Language" not in request.headers:
            translation.activate(user.language)
        return found

    def get_user(self, validated_token: Any) -> Any:
        user = super().get_user(validated_token)
        mark = str(validated_token.get(presence.MARK, ""))
        if not isinstance(user, User) or not presence.is_live(mark, user):
            raise AuthenticationFailed("signed out", code="signed_out")
        return user
