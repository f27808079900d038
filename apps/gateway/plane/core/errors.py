"""The gateway's refusals and faults in OpenAI's error shape.

Owns status, type, code and text of every error that a caller can get. Never holds a key, a host
path, an upstream address or any part of a prompt.
"""

import msgspec

from apps.core.masking import mask

TAKEN_CODINGS = "gzip, deflate"


class CallError(Exception):
    """An answer other than 200. `retry_after` is the header's value as text, None = no header."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after: str | None = None,
        allow: str | None = None,
        accept_encoding: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.allow = allow
        self.accept_encoding = accept_encoding

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}` as UTF-8 JSON."""
        fields = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": fields})

    def event(self) -> bytes:
        """The same as one whole server-sent event, for a stream that has begun (GW-09)."""
        return b"data: " + self.body() + b"\n\n"


# ---- who is calling (GW-02) ----


def missing_key() -> CallError:
    text = "No API key given. Send it as the header `Authorization: Bearer sk-...`."
    return CallError(401, text, code="invalid_api_key")


def invalid_key() -> CallError:
    """One text for unknown, revoked and expired keys, so that nothing is learned by trying."""
    text = "Incorrect API key provided. It is unknown, revoked or expired; issue or rotate one in the portal."
    return CallError(401, text, code="invalid_api_key")


def suspended(reason: str) -> CallError:
    text = f"The tenant of this API key is suspended: {reason or 'no reason was given'}."
    return CallError(403, text, kind="permission_error", code="tenant_suspended")


def scope_missing(scope: str) -> CallError:
    text = f"This API key may not do this: it lacks the scope `{scope}`. Add it in the portal, to the key."
    return CallError(403, text, kind="permission_error", code="scope_missing")


def address_not_allowed(address: str) -> CallError:
    """Which addresses are allowed is not told to whoever holds the key elsewhere."""
    text = (
        f"This API key may not be used from {address}: it is none of its allowed addresses. "
        "Call from one of them, or change them in the portal."
    )
    return CallError(403, text, kind="permission_error", code="address_not_allowed")


def pin_not_allowed(header: str) -> CallError:
    text = (
        f"This API key may not choose its backend by {header}: it lacks the scope `pin`. Leave the header "
        "out, or add the scope in the portal, to the key."
    )
    return CallError(403, text, kind="permission_error", code="pin_not_allowed", param=header)


def keys_unavailable(retry_after_s: int) -> CallError:
    """The key could not be looked up; that is not the same as "unknown"."""
    text = "The API key could not be checked just now. Try again shortly."
    return CallError(
        503, text, kind="server_error", code="key_check_unavailable", retry_after=str(retry_after_s)
    )


# ---- what is asked ----


def bad_http(why: str) -> CallError:
    """Whatever could be read in two ways is refused, so that no proxy before us reads it in the other."""
    return CallError(400, f"The request is not valid HTTP/1.1: {why}.", code="invalid_http")


def head_too_large(limit: int, of: str) -> CallError:
    text = f"The request's headers are larger than the limit of {limit} {of}. Send fewer or shorter ones."
    return CallError(431, text, code="headers_too_large")


def head_too_slow(limit_s: float) -> CallError:
    text = f"The request's headers did not arrive within {limit_s:g} seconds."
    return CallError(408, text, code="request_timeout")


def unknown_path(path: str) -> CallError:
    text = (
        f"Unknown request URL: {path[:200]}. Served here: /v1/chat/completions, /v1/completions, "
        "/v1/embeddings and /v1/models, which lists what a key may call."
    )
    return CallError(404, text, code="unknown_url")


def wrong_method(method: str, path: str, allowed: str) -> CallError:
    text = f"Not allowed to {method[:20]} on {path[:200]} (allowed: {allowed})."
    return CallError(405, text, code="method_not_allowed", allow=allowed)


def body_too_large(limit: int) -> CallError:
    text = f"The request body is larger than the limit of {limit} bytes. Send a smaller one."
    return CallError(413, text, code="request_too_large")


def no_room(size: int, limit: int, of: str, retry_after_s: int) -> CallError:
    text = (
        f"There is no room for {size} bytes of this request body now: the large bodies of {of} that are "
        f"being read or wait for an engine's answer may take {limit} bytes at once. Try again shortly, or "
        "send fewer at once."
    )
    return CallError(
        503, text, kind="server_error", code="too_many_large_requests", retry_after=str(retry_after_s)
    )


def body_too_slow(limit_s: float) -> CallError:
    text = f"The request body did not arrive within {limit_s:g} seconds."
    return CallError(408, text, code="request_timeout")


def encoded_body(encoding: str) -> CallError:
    text = (
        f"Content-Encoding {encoding[:40]!r} is not supported. Send the JSON body as it is, or packed once "
        f"by one of: {TAKEN_CODINGS}."
    )
    return CallError(415, text, code="unsupported_media_type", accept_encoding=TAKEN_CODINGS)


def not_packed(coding: str, why: str) -> CallError:
    text = f"The request body is not what its Content-Encoding {coding!r} says: {why}. Pack all of it once."
    return CallError(400, text, code="invalid_content_encoding")


def unpacked_too_large(packed: int, limit: int) -> CallError:
    text = (
        f"The request body of {packed} bytes is larger than the limit of {limit} bytes once it is unpacked. "
        "Send a smaller one."
    )
    return CallError(413, text, code="request_too_large")


def malformed(why: str) -> CallError:
    text = f"We could not parse the JSON body of your request: {why}. Expected one JSON object in UTF-8."
    return CallError(400, text, code="invalid_json")


def bad_field(param: str, rule: str) -> CallError:
    return CallError(400, f"Invalid value for '{param}': {rule}.", param=param, code="invalid_value")


def missing_model() -> CallError:
    text = 'You must provide a model parameter, e.g. "model": "name"; /v1/models lists the names.'
    return CallError(400, text, param="model", code="missing_required_parameter")


def model_not_found(model: str) -> CallError:
    """One text for unknown and not allowed, so that other names stay hidden (GW-02)."""
    shown = mask(model)[:200]
    text = f"The model `{shown}` does not exist or you do not have access to it. /v1/models lists yours."
    return CallError(404, text, param="model", code="model_not_found")


# ---- what the backends did ----


def no_backend(model: str, retry_after_s: int) -> CallError:
    text = (
        f"The model `{model[:200]}` has no ready replica just now: it starts, sleeps, failed or was stopped. "
        "Try again shortly, or see on its service's page in the portal which."
    )
    return CallError(503, text, kind="server_error", code="no_backend", retry_after=str(retry_after_s))


def all_asleep(model: str) -> CallError:
    """Without a time to come again: no time helps (GW-02)."""
    text = (
        f"The model `{model[:200]}` is asleep, and a call does not wake it. Whoever manages its service can, "
        "on its page in the portal or by POST /api/v1/tasks/{id}/wake."
    )
    return CallError(503, text, kind="server_error", code="no_backend")


def backends_failing(model: str, retry_after_s: int) -> CallError:
    text = (
        f"The replicas of `{model[:200]}` are ready but can not be reached just now, so none is asked. "
        "Try again shortly."
    )
    return CallError(503, text, kind="server_error", code="no_backend", retry_after=str(retry_after_s))


def pinned_nothing(model: str) -> CallError:
    text = (
        f"The model `{model[:200]}` has no route with the version, or no ready replica with the id, that the "
        "x-heteroflow headers ask for. Leave them out, or see the model's routes."
    )
    return CallError(404, text, code="pinned_backend_not_found")


def backend_busy(model: str, retry_after_s: int) -> CallError:
    text = f"All replicas of `{model[:200]}` are at their connection limit. Try again shortly."
    return CallError(503, text, kind="server_error", code="backend_busy", retry_after=str(retry_after_s))


def tables_unavailable(retry_after_s: int) -> CallError:
    text = "The gateway has not read its routes yet. Try again shortly."
    return CallError(
        503, text, kind="server_error", code="routes_unavailable", retry_after=str(retry_after_s)
    )


def stopping(retry_after_s: int) -> CallError:
    text = "This gateway is restarting. Try again shortly."
    return CallError(503, text, kind="server_error", code="gateway_stopping", retry_after=str(retry_after_s))


def upstream_unreachable() -> CallError:
    text = "The replica could not be reached or closed the connection before it answered."
    return CallError(502, text, kind="server_error", code="upstream_unreachable")


def upstream_failed(status: int) -> CallError:
    text = f"The engine answered with status {status}."
    return CallError(502, text, kind="server_error", code="upstream_error")


def not_offered_by_engine(model: str) -> CallError:
    text = f"The engine behind `{model[:200]}` does not offer this call, or was started without it."
    return CallError(400, text, kind="invalid_request_error", code="not_offered_by_engine")


def upstream_unavailable(retry_after: str) -> CallError:
    text = "The engine says that it is not available just now. Try again shortly."
    return CallError(503, text, kind="server_error", code="upstream_unavailable", retry_after=retry_after)


def upstream_refused_us() -> CallError:
    """One of `told.REFUSES_US` by an engine is our fault (its own key), never the caller's."""
    text = "The engine did not accept the gateway's own credential. Tell the operator."
    return CallError(502, text, kind="server_error", code="upstream_credential")


def upstream_unreadable(what: str) -> CallError:
    return CallError(502, f"The engine's answer {what}.", kind="server_error", code="upstream_unreadable")


def upstream_timeout(what: str, limit_s: float) -> CallError:
    text = f"The engine's {what} did not come within {limit_s:g} seconds."
    return CallError(504, text, kind="server_error", code="upstream_timeout")


def upstream_truncated() -> CallError:
    text = "The engine's answer broke off before its end. What came so far is incomplete."
    return CallError(502, text, kind="server_error", code="upstream_truncated")


def upstream_aborted() -> CallError:
    text = "The engine aborted this request. What came so far is incomplete."
    return CallError(502, text, kind="server_error", code="upstream_aborted")


def internal() -> CallError:
    text = "The gateway failed while serving this request. The request id finds it in the log."
    return CallError(500, text, kind="server_error", code="internal_error")
