"""Bounds request bodies before Django, which would keep all of any body on disk before it looks at
who sends it. Owns the count of bytes and the 413; the exact rules of each address stay its own.
"""

import json
from typing import Any

from django.conf import settings

from apps.core.errors import Refusal
from apps.core.problems import build_problem

AGENT_PATHS = "/agent/"
FILE_PIECES = "/agent/v1/files"
# A client that reads no answer before it has sent all sees a broken line instead of a 413. So much of
# what is too long is therefore taken and dropped first.
DROPPED_BYTES = 64 * 1024 * 1024


class _TooLarge(Exception):
    """More came than may be kept. `more`: the body hasn't ended yet."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.more = more


class BoundedBodies:
    """An ASGI app in front of Django. Answers 413 to a body that is, or says that it is, longer than
    its address takes: FILE_CHUNK_BYTES for pieces of files, AGENT_BODY_MAX_BYTES for agents else,
    API_BODY_MAX_BYTES for all others."""

    def __init__(self, application: Any) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        limit = limit_of(scope["path"])
        if _announced(scope) > limit:
            await _refuse(scope, receive, send)
            return
        came = 0

        async def receive_bounded() -> Any:
            nonlocal came
            message = await receive()
            came += len(message.get("body", b""))
            if came > limit:
                raise _TooLarge(bool(message.get("more_body")))
            return message

        try:
            await self._application(scope, receive_bounded, send)
        except _TooLarge as error:  # while the body is read nothing is answered yet
            await _refuse(scope, receive, send, more=error.more)


def limit_of(path: str) -> int:
    """The longest body in bytes that an address may get at all."""
    if path == FILE_PIECES:
        pieces: int = settings.FILE_CHUNK_BYTES
        return pieces
    is_agent = path.startswith(AGENT_PATHS)
    limit: int = settings.AGENT_BODY_MAX_BYTES if is_agent else settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    return limit


def _announced(scope: dict[str, Any]) -> int:
    length = dict(scope["headers"]).get(b"content-length", b"0")
    return int(length[:20]) if length.isdigit() else 0


async def _drop_rest(receive: Any) -> None:
    dropped = 0
    while dropped <= DROPPED_BYTES:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body"):
            return


async def _refuse(scope: dict[str, Any], receive: Any, send: Any, *, more: bool = True) -> None:
    if more and _announced(scope) <= DROPPED_BYTES:
        await _drop_rest(receive)
    problem = build_problem(Refusal("body_too_large", 413))
    if scope["path"].startswith(AGENT_PATHS):
        problem["type"] = "error"  # the contract's AgentError
    body = json.dumps(problem).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
