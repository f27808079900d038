"""A websocket client for tests, straight on an ASGI application: no server, no network."""

import json
from typing import Any
from urllib.parse import unquote

from asgiref.testing import ApplicationCommunicator

WAIT_S = 10


class Socket(ApplicationCommunicator):
    """`open()` gives True, or the code by which the handshake was refused."""

    def __init__(self, application: Any, address: str, headers: dict[str, str] | None = None) -> None:
        path, _, query = address.partition("?")
        raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        scope = {
            "type": "websocket",
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": raw,
            "subprotocols": [],
        }
        super().__init__(application, scope)

    async def open(self) -> bool | int:
        await self.send_input({"type": "websocket.connect"})
        answer = await self.receive_output(WAIT_S)
        return True if answer["type"] == "websocket.accept" else int(answer.get("code", 1000))

    async def hear(self) -> Any:
        """The next message, decoded."""
        message = await self.receive_output(WAIT_S)
        assert message["type"] == "websocket.send", message
        return json.loads(message["text"])

    async def close_code(self) -> int:
        """The code by which the server closes, next."""
        message = await self.receive_output(WAIT_S)
        assert message["type"] == "websocket.close", message
        return int(message["code"])

    async def hang_up(self) -> None:
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(WAIT_S)
