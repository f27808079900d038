"""Reads whole answers of engines: usage, renaming, and errors turned into OpenAI's one shape.

Pure: bytes in, bytes out. An engine's 5xx text is never passed on, since it may hold paths.
"""

import re
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.naming import MOST_CHARS, swap_name, write_name
from apps.gateway.plane.core.request import estimate_text_tokens
from apps.gateway.plane.core.stream import is_aborted
from apps.gateway.plane.core.told import MAX_MESSAGE_CHARS, REFUSES_US, read_error_object, upstream_reported
from apps.gateway.plane.core.usage import Usage, decode_usage, parse_usage, read_counts

MAX_RETRY_AFTER_S = 86_400
_fields = msgspec.json.Decoder(dict[str, Raw])
_encoder = msgspec.json.Encoder()


class _Message(msgspec.Struct):
    content: Any = None


class _Choice(msgspec.Struct):
    message: _Message | None = None
    text: str | None = None
    finish_reason: Any = None


class _End(msgspec.Struct):
    """How a choice ended; its text is skipped unread."""

    finish_reason: str | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, Any] | None = None


class _Told(msgspec.Struct):
    """What the gateway looks at in an answer; unknown fields are skipped unread. An answer without `usage` is
    read as an odd one: its text must be counted."""

    usage: _Counts
    model: str | None = None
    choices: list[_End] | None = None
    error: Raw | UnsetType = UNSET


_choices = msgspec.json.Decoder(list[_Choice])
_answers = msgspec.json.Decoder(_Told)
_RETRY_AFTER = re.compile(rb"[0-9]{1,9}|[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} GMT")
_MODEL = re.compile(rb'"model"[ \t\r\n]*:[ \t\r\n]*("(?:[^"\\]|\\.)*+")')


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
        told = _answers.decode(body)
    except (msgspec.ValidationError, RecursionError):
        return _read_odd_answer(body, model)
    except msgspec.DecodeError:
        raise errors.upstream_unreadable("is not a JSON object") from None
    if told.error is not UNSET and bytes(told.error) != b"null":
        raise upstream_reported(body)
    for choice in told.choices or ():
        if choice.finish_reason == "abort":
            raise errors.upstream_aborted()
    counts, name = told.usage, told.model
    usage = read_counts(counts.prompt_tokens, counts.completion_tokens, counts.prompt_tokens_details)
    if usage is None:
        return _read_odd_answer(body, model)
    if name is not None and name != model:
        body = swap_name(body, name, model) or _rename(body, name, model)
    return Answer(body, usage, 0)


def _read_odd_answer(body: bytes, model: str) -> Answer:
    """An answer whose parts are of other types than OpenAI's: each is read for itself, as far as it can."""
    try:
        fields = _fields.decode(body)
        name = bytes(fields.get("model", b"null"))
        was = msgspec.json.decode(name, type=str) if name.startswith(b'"') else model
    except (msgspec.DecodeError, RecursionError):
        raise errors.upstream_unreadable("is not a JSON object") from None
    if bytes(fields.get("error", b"null")) != b"null":
        raise upstream_reported(body)
    usage = parse_usage(decode_usage(bytes(fields.get("usage", b"null"))))
    text_bytes = _read_choices(bytes(fields.get("choices", b"[]")))
    if was != model:
        body = _rename(body, was, model)
    return Answer(body, usage, estimate_text_tokens(text_bytes))


def _rename(body: bytes, name: str, model: str) -> bytes:
    """The same bytes with another model name, wherever blanks stand around it; where its field isn't the only
    one of that name the object is taken apart and put together again."""
    found, named = _MODEL.search(body), write_name(model)
    if found is not None and body.count(b'"model"') == 1 and found[1] == _encoder.encode(name):
        return b"%b%b%b" % (body[: found.start(1)], bytes(named), body[found.end(1) :])
    fields = _fields.decode(body)
    fields["model"] = named
    return _encoder.encode(fields)


def read_upstream_error(
    status: int, body: bytes, *, retry_after: bytes | None, served_name: str, model: str, retry_after_s: int
) -> errors.CallError:
    """What the caller gets for an upstream status other than 200, before any byte was sent.

    A 4xx keeps its status, message, param and Retry-After (where that is one); 401, 403 and 407 are about our
    own credential and become 502; 501 is the caller's mistake and becomes 400; 503 and 504 stay, all
    other statuses become 502.
    """
    if status in REFUSES_US:
        return errors.upstream_refused_us()
    if status == 501:
        return errors.not_offered_by_engine(model)
    if status == 503:
        return errors.upstream_unavailable(read_retry_after(retry_after) or str(retry_after_s))
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
        retry_after=read_retry_after(retry_after),
    )


def read_retry_after(told: bytes | None) -> str | None:
    """An engine's Retry-After as it may go on: whole seconds, a day at most, or HTTP's date; else None."""
    if told is None or not _RETRY_AFTER.fullmatch(told):
        return None
    text = told.decode("ascii")
    if text.isdigit():
        return text if int(text) <= MAX_RETRY_AFTER_S else None
    try:
        parsedate_to_datetime(text)
    except ValueError:
        return None
    return text


def rejects_usage_option(status: int, body: bytes) -> bool:
    """Whether an engine refused the call because it knows no `stream_options`."""
    return status in (400, 422) and (b"stream_options" in body or b"include_usage" in body)


def read_model_id(body: bytes) -> str | None:
    """The first id of an engine's /v1/models that isn't an adapter; None when there is none, or a longer one
    than is kept: what an engine says must not fill the memory."""
    try:
        listed = msgspec.json.decode(body, type=dict[str, Any]).get("data")
    except (msgspec.DecodeError, RecursionError):
        return None
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    for entry in entries:
        if isinstance(entry.get("id"), str) and entry["id"] and not entry.get("parent"):
            return str(entry["id"]) if len(entry["id"]) <= MOST_CHARS else None
    return None


def _read_choices(raw: bytes) -> int:
    try:
        return _count_text(_choices.decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return 0


def _count_text(choices: Iterable[_Choice]) -> int:
    """Bytes of answered text. Raises CallError when the engine aborted a choice."""
    total = 0
    for choice in choices:
        if is_aborted(choice.finish_reason):
            raise errors.upstream_aborted()
        content = None if choice.message is None else choice.message.content
        for text in (choice.text, content):
            total += len(text.encode()) if isinstance(text, str) else 0
    return total
