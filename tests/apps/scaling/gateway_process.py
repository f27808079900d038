"""`python -m tests.apps.scaling.gateway_process DATABASE SETTINGS`: a gateway on a free port beside the test.

Both arguments are JSON: a Django database, and settings on top of the suite's. Prints its port, then serves
until SIGTERM, as a server process does.
"""

import asyncio
import json
import os
import socket
import sys
from typing import Any

import django
import uvicorn


async def live(app: Any, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "lifespan":
        await app(scope, receive, send)
        return
    while True:
        message = await receive()
        await (app.startup() if message["type"] == "lifespan.startup" else app.shutdown())
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def main(database: dict[str, Any], changes: dict[str, Any]) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "heteroflow.settings.test"
    from django.conf import settings

    settings.DATABASES = {"default": database}
    for name, value in changes.items():
        setattr(settings, name, value)
    django.setup()
    from apps.gateway.wiring import build_gateway

    gateway = build_gateway()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        await live(gateway, scope, receive, send)

    options = uvicorn.Config(serve, log_level="error", lifespan="on")
    print(listener.getsockname()[1], flush=True)
    await uvicorn.Server(options).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), json.loads(sys.argv[2])))
