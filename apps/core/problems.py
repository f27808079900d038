"""The one problem shape of `/api/v1`, in the caller's language.

    {"code": "...", "detail": "...", "status": 400, "request_id": "...",
     "errors": [{"field": "task.image", "code": "...", "value": "...", "detail": "..."}]}

Turns Refusal and the framework's own exceptions into it; never a traceback.
"""

import logging
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.urls import Resolver404
from rest_framework import exceptions
from rest_framework.response import Response

from apps.core import texts
from apps.core.errors import FieldError, Refusal, field_path
from apps.core.requests import request_id

log = logging.getLogger("heteroflow.api")


def build_problem(refusal: Refusal) -> dict[str, Any]:
    """The JSON body of a refusal, in the active language."""
    return {
        "code": refusal.code,
        "detail": texts.say(refusal.code, refusal.params),
        "status": refusal.status,
        "params": refusal.params,
        "errors": [
            {
                "field": error.field,
                "code": error.code,
                "value": error.value,
                "detail": texts.say(error.code, {"field": error.field, "value": error.value, **error.params}),
            }
            for error in refusal.errors
        ],
        "request_id": request_id.get(),
    }


def refusal_of(error: Exception) -> Refusal | None:  # noqa: C901 - one flat table
    """The refusal that an exception stands for; None for one that nobody expected."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, Http404 | exceptions.NotFound):
        return Refusal("not_found", 404)
    if isinstance(error, PermissionDenied | exceptions.PermissionDenied):
        return Refusal("forbidden", 403)
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        return Refusal("not_signed_in", 401)
    if isinstance(error, RequestDataTooBig):
        return Refusal("body_too_large", 413)
    if isinstance(error, exceptions.ParseError):
        return Refusal("not_an_object" if error.get_codes() == "not_an_object" else "malformed_json", 400)
    if isinstance(error, exceptions.ValidationError):
        return Refusal("invalid", 400, errors=list(_field_errors(error.get_full_details())))
    if isinstance(error, exceptions.MethodNotAllowed):
        return Refusal("method_not_allowed", 405)
    if isinstance(error, exceptions.Throttled):
        return Refusal("throttled", 429, retry_after_s=int(getattr(error, "wait", None) or 1))
    if isinstance(error, exceptions.UnsupportedMediaType):
        return Refusal("unsupported_media_type", 415)
    if isinstance(error, exceptions.APIException):
        return Refusal("invalid", error.status_code)
    if isinstance(error, OperationalError | InterfaceError):
        # Its words, not its frames: while a database is away this line comes with every request.
        log.error("the database did not answer: %s", error)
        return Refusal("database_away", 503)
    return None


def _field_errors(details: Any, path: str = "") -> Any:
    if isinstance(details, dict) and "message" in details and "code" in details:
        yield FieldError(path or "body", str(details["code"]), params={"message": str(details["message"])})
    elif isinstance(details, dict):
        for key, inner in details.items():
            yield from _field_errors(inner, field_path(path, key))
    elif isinstance(details, list):
        for inner in details:
            yield from _field_errors(inner, path)


def exception_handler(error: Exception, context: dict[str, Any]) -> Response:
    """DRF's hook."""
    refusal = refusal_of(error)
    if refusal is None:
        log.exception("unexpected error")
        refusal = Refusal("internal", 500)
    response = Response(build_problem(refusal), status=refusal.status)
    if refusal.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="api"'
    if refusal.status in (429, 503):
        response["Retry-After"] = str(refusal.params.get("retry_after_s", 1))
    return response


def problem_response(error: Refusal) -> JsonResponse:
    """The same shape for plain Django views."""
    return JsonResponse(build_problem(error), status=error.status)


def handler404(request: HttpRequest, exception: Exception) -> JsonResponse:
    """Unknown paths below /api, and objects that a plain view did not find."""
    unknown = isinstance(exception, Resolver404)
    return problem_response(Refusal("no_such_address" if unknown else "not_found", 404))


def handler500(request: HttpRequest) -> JsonResponse:
    """Anything that escaped."""
    return problem_response(Refusal("internal", 500))
