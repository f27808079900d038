"""The one door of a server process: inference under /v1 goes to the gateway, websockets to Channels,
the rest to Django.

The gateway stands before Django because Django's handler costs more than a whole proxied call
(docs/adr/0002).
"""

import asyncio
import signal
import threading
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.urls import re_path

from apps.agentlink.routing import websocket_urlpatterns as agent_sockets
from apps.gateway.plane.io.listener import Listener, bind
from apps.gateway.wiring import build_gateway
from apps.ops import health
from apps.streams.routing import websocket_urlpatterns as people_sockets
from heteroflow.bodies import BoundedBodies
from heteroflow.origins import SameOriginOnly

Scope = dict[str, Any]
Receive = Any  # ASGI's callables; Django, Channels and the gateway each type them in their own way
Send = Any

AGENT_SOCKET = "/ws/agent"
# These stay Django's: they are control-plane work in OpenAI's shape, not inference.
DJANGO_UNDER_V1 = ("/v1/control/", "/v1/files", "/v1/batches")


async def refuse_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """Where no websocket is: closed before it opens, and no error in the log."""
    await receive()
    await send({"type": "websocket.close", "code": 4404})


class Application:
    """One door for all three; its lifespan is the gateway's."""

    def __init__(self, django: ASGIHandler) -> None:
        self.django = BoundedBodies(django)
        self.gateway = build_gateway()
        self.listener = Listener(self.gateway, self.gateway.config)
        elsewhere = re_path("", refuse_socket)  # type: ignore[arg-type]  # a socket, not a view
        people = URLRouter([*people_sockets, elsewhere])
        # An agent sends no Origin and brings its own credential; a browser must come from our pages.
        self.agents = URLRouter([*agent_sockets, elsewhere])
        self.people = SameOriginOnly(AuthMiddlewareStack(people))
        health.watch("gateway", self.gateway.ready)
        health.offer("drained", self.gateway.drained)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            is_agent = scope["path"].rstrip("/") == AGENT_SOCKET
            await (self.agents if is_agent else self.people)(scope, receive, send)
        elif scope["path"].startswith("/v1/") and not scope["path"].startswith(DJANGO_UNDER_V1):
            await self.gateway(scope, receive, send)
        else:
            await self.django(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.gateway.startup()
                    await self._listen()
                except OSError as error:  # its folder can't be written: nothing may be served unrecorded
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                # Calls end while the rest goes on: whoever supervises us ends the engines after them.
                if threading.current_thread() is threading.main_thread():
                    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.gateway.drain)
                await send({"type": "lifespan.startup.complete"})
            else:
                self.listener.drain()
                await self.gateway.shutdown()
                self.listener.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _listen(self) -> None:
        """Calls come by the gateway's own listener, too, where one was asked for. Raises OSError."""
        host, _, port = getattr(settings, "GATEWAY_LISTEN", "").rpartition(":")
        if port:
            await self.listener.start(bind(host.strip("[]"), int(port)))
