"""Websockets of people: only from pages that this very address served.

A browser sends its cookies to every port of a host, so that a page on another port, a container's
for instance, could otherwise listen in on who is signed in here. Host and port must both match.
"""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.http.request import split_domain_port, validate_host

_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class SameOriginOnly:
    """An ASGI app that refuses a handshake whose Origin isn't its Host, or whose Host isn't ours.
    Origins in CSRF_TRUSTED_ORIGINS may come too, as they may post forms."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin", b"").decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        if is_own_page(origin, host):
            await self._application(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.close", "code": 4403})


def is_own_page(origin: str, host: str) -> bool:
    """Whether a page of this origin was served under this Host header, which must be an allowed one."""
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        return False
    try:
        page, here = urlsplit(origin), urlsplit(f"//{host}")
        default = _PORTS.get(page.scheme)
        same_port = (page.port or default) == (here.port or default)
    except ValueError:  # a port that is none
        return False
    return default is not None and same_port and page.hostname == here.hostname
