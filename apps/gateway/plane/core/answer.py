"""Reads whole answers of engines: usage, renaming, and errors turned into OpenAI's one shape.

Pure: bytes in, bytes out. An engine's 5xx text is never passed on, since it may hold paths.
"""

from typing import Any

import msgspec
from msgspec import Raw

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.request import estimate_text_tokens
from apps.gateway.plane.core.stream import is_aborted
from apps.gateway.plane.core.told import read_error_object, upstream_reported
from apps.gateway.plane.core.usage import Usage, parse_usage

MAX_MESSAGE_CHARS = 2000
_fields = msgspec.json.Decoder(dict[str, Raw])
_encoder = msgspec.json.Encoder()


class _Choice(msgspec.Struct):
    message: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: Any = None


_choices = msgspec.json.Decoder(list[_Choice])


class Answer(msgspec.Struct, frozen=True):
    """A whole answer for the caller. `text_tokens` is a count for engines that report no usage."""

    body: bytes
    usage: Usage | None
    text_tokens: int


def read_answer(body: bytes, model: str) -> Answer:
    """A 200 body with the caller's model name (GW-05).

    Raises CallError when it is no JSON object, holds an error, or the engine aborted the call.
    """
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError):
        raise errors.upstream_unreadable("is not a JSON object") from None
    if bytes(fields.get("error", b"null")) != b"null":
        raise upstream_reported(body)
    usage = parse_usage(msgspec.json.decode(bytes(fields.get("usage", b"null"))))
    text_bytes = _read_choices(bytes(fields.get("choices", b"[]")))
    name = bytes(fields.get("model", b"null"))
    if name.startswith(b'"') and msgspec.json.decode(name) != model:
        fields["model"] = Raw(_encoder.encode(model))
        body = _encoder.encode(fields)
    return Answer(body, usage, estimate_text_tokens(text_bytes))


def read_upstream_error(
    status: int, body: bytes, *, retry_after: str | None, served_name: str, model: str, retry_after_s: int
) -> errors.CallError:
    """What the caller gets for an upstream status other than 200, before any byte was sent.

    A 4xx keeps its status, message, param and Retry-After; 401 and 403 are about our own
    credential and become 502; 501 is the caller's mistake and becomes 400; 503 and 504 stay, all
    other statuses become 502.
    """
    if status in (401, 403, 407):
        return errors.upstream_refused_us()
    if status == 501:
        return errors.not_offered_by_engine(model)
    if status == 503:
        return errors.upstream_unavailable(retry_after or str(retry_after_s))
    if status == 504:
        return errors.CallError(
            504, "The engine gave up waiting.", kind="server_error", code="upstream_timeout"
        )
    if not 400 <= status < 500:
        return errors.upstream_failed(status)
    told = read_error_object(body)
    message = told.message or f"The engine refused the request with status {status}."
    if served_name != model and len(served_name) > 2:
        message = message.replace(served_name, model)
    return errors.CallError(
        status,
        message[:MAX_MESSAGE_CHARS],
        kind="rate_limit_error" if status == 429 else "invalid_request_error",
        code="rate_limit_exceeded" if status == 429 else told.code,
        param=told.param,
        retry_after=retry_after,
    )


def rejects_usage_option(status: int, body: bytes) -> bool:
    """Whether an engine refused the call because it knows no `stream_options`."""
    return status in (400, 422) and (b"stream_options" in body or b"include_usage" in body)


def read_model_id(body: bytes) -> str | None:
    """The first id of an engine's /v1/models that isn't an adapter; None when there is none."""
    try:
        listed = msgspec.json.decode(body, type=dict[str, Any]).get("data")
    except (msgspec.DecodeError, RecursionError):
        return None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if isinstance(entry.get("id"), str) and entry["id"] and not entry.get("parent"):
            return str(entry["id"])
    return None


def _read_choices(raw: bytes) -> int:
    """Bytes of answered text. Raises CallError when the engine aborted a choice."""
    try:
        choices = _choices.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return 0
    total = 0
    for choice in choices:
        if is_aborted(choice.finish_reason):
            raise errors.upstream_aborted()
        content = (choice.message or {}).get("content")
        for text in (choice.text, content):
            total += len(text.encode()) if isinstance(text, str) else 0
    return total
