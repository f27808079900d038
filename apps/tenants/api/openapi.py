"""How the schema describes signing in: the frameworks' own classes are known to it, ours are derived."""

from drf_spectacular.authentication import SessionScheme
from drf_spectacular.contrib.rest_framework_simplejwt import SimpleJWTScheme


class StrictSessionScheme(SessionScheme):
    """The session cookie, for apps.core.requests.SessionAuthentication."""

    target_class = "apps.core.requests.SessionAuthentication"
    priority = 1


class TokenScheme(SimpleJWTScheme):
    """The bearer token, for apps.tenants.api.authentication.TokenAuthentication."""

    target_class = "apps.tenants.api.authentication.TokenAuthentication"
    priority = 1
