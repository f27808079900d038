"""The shell around every agent message: method, version, credential, size, decoding, errors.

Owns that each answer is a contract message, also a refusal (AgentError), and that no traceback,
path or secret leaves. Plain Django without sessions, so that a heartbeat costs little.
"""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from agent.contract import wire
from agent.contract.messages import CONTRACT_HEADER, AgentError
from apps.agentlink.credentials import check_contract, check_credential
from apps.core import texts
from apps.core.errors import Refusal
from apps.core.problems import refusal_of
from apps.core.scopes import NODE, PUBLIC, scope
from apps.fleet.models import Node

log = logging.getLogger("heteroflow.agentlink")

FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP")
M = TypeVar("M", bound=msgspec.Struct)
View = Callable[[HttpRequest], HttpResponse]


@dataclass(frozen=True, slots=True)
class Caller:
    """A node that has proved who it is, the contract that its agent speaks, and the address it is at, ""
    where a proxy that nobody named in TRUSTED_PROXIES stands between."""

    node: Node
    contract: int
    address: str


def from_node(kind: type[M]) -> Callable[[Callable[[Caller, M], msgspec.Struct]], View]:
    """A view that takes one message of a node that has proved who it is."""

    def wrap(answer: Callable[[Caller, M], msgspec.Struct]) -> View:
        def exchange(request: HttpRequest) -> msgspec.Struct:
            return answer(_caller(request), _read(request, kind))

        return _view(exchange, answer, NODE)

    return wrap


def bytes_from_node(answer: Callable[[Caller, HttpRequest], msgspec.Struct]) -> View:
    """A view that takes a body of bytes, which it reads itself, of a node that has proved who it is."""

    def exchange(request: HttpRequest) -> msgspec.Struct:
        return answer(_caller(request), request)

    return _view(exchange, answer, NODE)


def _caller(request: HttpRequest) -> Caller:
    contract = check_contract(request.headers.get(CONTRACT_HEADER))
    node = check_credential(request.headers.get("Authorization"))
    hidden = not settings.TRUSTED_PROXIES and any(name in request.headers for name in FORWARDED)
    return Caller(node, contract, "" if hidden else _address(request))


def from_stranger(kind: type[M]) -> Callable[[Callable[[str, M], msgspec.Struct]], View]:
    """A view for a machine that is no node yet; it gets the caller's address."""

    def wrap(answer: Callable[[str, M], msgspec.Struct]) -> View:
        def exchange(request: HttpRequest) -> msgspec.Struct:
            check_contract(request.headers.get(CONTRACT_HEADER))
            return answer(_address(request), _read(request, kind))

        return _view(exchange, answer, PUBLIC)

    return wrap


def _view(exchange: Callable[[HttpRequest], msgspec.Struct], named: Callable[..., Any], who: str) -> View:
    @scope(who)
    @csrf_exempt
    @functools.wraps(named)
    def view(request: HttpRequest) -> HttpResponse:
        try:
            if request.method != "POST":
                raise Refusal("method_not_allowed", 405)
            return _response(exchange(request), 200)
        except Exception as error:
            return _refuse(error, request)

    return view


def _address(request: HttpRequest) -> str:
    return str(request.META.get("REMOTE_ADDR", ""))


def _read(request: HttpRequest, kind: type[M]) -> M:
    """The message in the body, read no further than AGENT_BODY_MAX_BYTES."""
    if request.content_type != "application/json":
        raise Refusal("unsupported_media_type", 415)
    limit = settings.AGENT_BODY_MAX_BYTES
    body = request.read(limit + 1)
    if len(body) > limit:
        raise Refusal("body_too_large", 413)
    return wire.decode(body, kind)


def _response(message: msgspec.Struct, status: int) -> HttpResponse:
    return HttpResponse(wire.encode(message), status=status, content_type="application/json")


def _refuse(error: Exception, request: HttpRequest) -> HttpResponse:
    """The AgentError that an exception stands for."""
    if isinstance(error, msgspec.ValidationError):
        return _response(AgentError("invalid", str(error)), 400)  # names the field, as `$.cards[0].index`
    if isinstance(error, msgspec.DecodeError | UnicodeDecodeError):
        return _response(AgentError("malformed_json", texts.say("malformed_json")), 400)
    if isinstance(error, UnreadablePostError):  # the agent hung up; nobody reads this
        return _response(AgentError("malformed_json", texts.say("malformed_json")), 400)
    refusal = refusal_of(error)
    if refusal is None:
        log.exception("unexpected error at %s", request.path)
        refusal = Refusal("internal", 500)
    response = _response(AgentError(refusal.code, _detail(refusal)), refusal.status)
    if refusal.status == 405:
        response["Allow"] = "POST"
    if refusal.status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="node"'
    if refusal.status in (429, 503):
        response["Retry-After"] = str(refusal.params.get("retry_after_s", 1))
    return response


def _detail(refusal: Refusal) -> str:
    whole = texts.say(refusal.code, refusal.params)
    fields = [
        texts.say(error.code, {"field": error.field, "value": error.value, **error.params})
        for error in refusal.errors
    ]
    return " ".join([whole, *fields])
