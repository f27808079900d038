"""Reads what engines say about their own errors, in whichever form they say it.

Pure: bytes in, a CallError or its parts out. Text of an engine's 5xx is dropped: it may hold paths.
"""

import msgspec

from apps.gateway.plane.core.errors import CallError


class ToldError(msgspec.Struct, frozen=True):
    """What could be read of an engine's error body; None = it said nothing of it."""

    message: str | None = None
    param: str | None = None
    code: str | None = None


REFUSES_US = (401, 403, 407)
"""By these statuses an engine does not take our credential; the caller's was good."""
MAX_MESSAGE_CHARS = 2000
MAX_NAME_CHARS = 200
# Names that engines use for what OpenAI calls otherwise.
_CODES = {"exceed_context_size_error": "context_length_exceeded"}


def read_error_object(body: bytes) -> ToldError:
    """Reads `{"error": {...}}`, `{"error": "text"}`, a bare error object, `{"detail": ...}`."""
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ToldError()
    if isinstance(told, dict) and "error" in told:
        told = told["error"]
    if isinstance(told, str):
        return ToldError(message=told)
    if not isinstance(told, dict):
        return ToldError()
    message = told.get("message", told.get("detail"))
    if isinstance(message, list | dict):
        message = msgspec.json.encode(message).decode()
    kind, param, code = told.get("type"), told.get("param"), told.get("code")
    if not isinstance(code, str):
        code = _CODES.get(kind) if isinstance(kind, str) else None
    return ToldError(
        message=message if isinstance(message, str) and message else None,
        param=param[:MAX_NAME_CHARS] if isinstance(param, str) else None,
        code=None if code is None else code[:MAX_NAME_CHARS],
    )


def upstream_reported(body: bytes) -> CallError:
    """An error that an engine put into an answer it had begun with status 200.

    A 4xx code of the engine keeps its text; anything else gets a text of ours.
    """
    status = _status_inside(body)
    told = read_error_object(body)
    if status is not None and 400 <= status < 500 and status not in REFUSES_US and told.message:
        return CallError(status, told.message[:MAX_MESSAGE_CHARS], code=told.code, param=told.param)
    text = "The engine reported an error while it answered. What came so far is incomplete."
    return CallError(502, text, kind="server_error", code="upstream_error")


def _status_inside(body: bytes) -> int | None:
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    if isinstance(told, dict) and isinstance(told.get("error"), dict):
        told = told["error"]
    code = told.get("code") if isinstance(told, dict) else None
    return code if isinstance(code, int) and not isinstance(code, bool) else None
