"""How the schema describes signing in by session: DRF's own class is known to it, ours is derived."""

from drf_spectacular.authentication import SessionScheme


class StrictSessionScheme(SessionScheme):
    """The session cookie, for apps.core.requests.SessionAuthentication."""

    target_class = "apps.core.requests.SessionAuthentication"
    priority = 1
