"""What every request gets: an id that follows it through the logs, strict JSON, CSRF-checked sessions."""

import io
import logging
import math
import re
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from rest_framework import authentication, exceptions, parsers

from apps.core.errors import FieldError, Invalid, Refusal, field_path
from apps.core.request_id import request_id as request_id

client_address: ContextVar[str] = ContextVar("client_address", default="")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
LONGEST_FAULT = 300  # characters of one in the log
_SANE = re.compile(r"^[A-Za-z0-9._-]{8,64}\Z")


def take_request_id(offered: str | None) -> str:
    """The caller's request id where it is harmless to log, else a fresh one."""
    return offered if offered and _SANE.match(offered) else f"req-{uuid.uuid4().hex}"


class RequestIdMiddleware:
    """Sets `request.request_id` and the answer's X-Request-Id, and notes where the request comes from."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._call_async(request)
        token = self._enter(request)
        try:
            return self._leave(request, self.get_response(request))
        finally:
            request_id.reset(token)
            client_address.set("")

    async def _call_async(self, request: HttpRequest) -> HttpResponse:
        token = self._enter(request)
        try:
            return self._leave(request, await self.get_response(request))
        finally:
            request_id.reset(token)
            client_address.set("")

    @staticmethod
    def _enter(request: HttpRequest) -> Any:
        value = take_request_id(request.headers.get("X-Request-Id"))
        request.request_id = value  # type: ignore[attr-defined]
        client_address.set(request.META.get("REMOTE_ADDR") or "")
        return request_id.set(value)

    @staticmethod
    def _leave(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["X-Request-Id"] = request.request_id  # type: ignore[attr-defined]
        return response


class AddRequestId(logging.Filter):
    """Gives every log line the id of the request it belongs to."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not hasattr(record, "request_id"):
            record.request_id = request_id.get()
        return True


class ShortenStrangersFaults(logging.Filter):
    """One warning for a request that the framework itself turned away, a strange Host for instance,
    where it logs an error with a traceback: whoever likes could fill the log with them."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith("django.security."):
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = record.getMessage()[:LONGEST_FAULT], ()
        return True


class SessionAuthentication(authentication.SessionAuthentication):
    """Session sign-in for the API; answers 401 (not 403) when nobody is signed in."""

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class StrictJSONParser(parsers.JSONParser):
    """JSON objects only, of bounded size, with values that every database can hold.

    Raises ParseError for what is no JSON object; Refusal `body_too_large` (413) above
    DATA_UPLOAD_MAX_MEMORY_SIZE, which the framework checks for forms only; Invalid for NUL
    characters, lone surrogates and numbers beyond a double, each with its path.
    """

    strict = True

    def parse(self, stream: Any, media_type: Any = None, parser_context: Any = None) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise Refusal("body_too_large", 413)
        try:
            value = super().parse(io.BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise exceptions.ParseError("nested too deeply") from None
        if not isinstance(value, dict):
            raise exceptions.ParseError("not_an_object", code="not_an_object")
        errors = [FieldError(path, "bad_characters") for path in find_unstorable(value)]
        if errors:
            raise Invalid(errors)
        return value


def find_unstorable(value: Any, path: str = "") -> Iterator[str]:
    """Paths of values that JSON allows and a database refuses: text with NUL or half a
    surrogate pair, numbers that became infinite. A bad key is reported under its parent."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if _UNSTORABLE.search(key):
                yield path or "body"
            else:
                yield from find_unstorable(inner, field_path(path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from find_unstorable(inner, field_path(path, place))
    elif (isinstance(value, str) and _UNSTORABLE.search(value)) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        yield path or "body"
