"""What a caller asks, read from the body, and the body that goes to the engine.

Only `model` is replaced and usage asked for; every other field stays as the bytes that came
(GW-05). Never interprets sampling fields: that is the engine's business.
"""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.naming import write_name

STREAMING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
INFERENCE_PATHS = STREAMING_PATHS | {"/v1/embeddings"}
_PATHS = {path.encode(): path for path in (*INFERENCE_PATHS, "/v1/models")}
MAX_MODEL_CHARS = 256
TEXT_BYTES_PER_TOKEN = 4
_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_STATE = re.compile(rb"[!-~ ]{1,512}")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_PROMPT_FIELDS = ("messages", "prompt", "input")
MAX_FIELDS = 1000
_MANY_NAMES = 10_000
"""To make so many fields stops the loop for milliseconds, also from a thread: that is looked for before."""
_MANY_VALUES, _VALUE_MARKS = 100_000, (b",", b"[", b"{")

_fields = msgspec.json.Decoder(dict[str, Raw])
# In these a call may have names and colons without end: what is said, and what an answer is bound to.
_LONG_FIELDS = (
    *("messages", "prompt", "input", "documents", "tools", "functions", "logit_bias", "metadata"),
    *("response_format", "json_schema", "grammar", "structured_outputs", "guided_json", "guided_grammar"),
    *("guided_choice", "chat_template", "chat_template_kwargs"),
)
_long_fields = msgspec.json.Decoder(
    msgspec.defstruct("_LongFields", [(name, Raw, Raw(b"")) for name in _LONG_FIELDS])
)
_encoder = msgspec.json.Encoder()


class Call(msgspec.Struct):
    """One parsed request. `wants_usage`: the caller itself asked for the usage chunk.

    `prompt_tokens`: an estimate made early, so that `fields` may be dropped once they were sent.
    """

    path: str
    model: str
    stream: bool
    wants_usage: bool
    fields: dict[str, Raw]
    prompt_tokens: int | None = None


def read_path(target: bytes) -> str:
    """The path of a request's target, decoded and without its query."""
    known = _PATHS.get(target)
    if known is not None:
        return known
    if not target.startswith((b"/", b"*")) and b"://" in target:  # the whole address, as to a proxy
        target = b"/" + target.split(b"://", 1)[1].partition(b"/")[2]
    return unquote(target.partition(b"?")[0].decode("latin-1"))


@lru_cache(maxsize=256)
def is_host(value: bytes) -> bool:
    """Whether a Host header names one host, with or without a port, and nothing else."""
    return _HOST.fullmatch(value) is not None


def parse_call(path: str, body: bytes) -> Call:
    """Reads a JSON body. Raises CallError 400 that names the field and the rule."""
    try:
        body.decode()
        if len(body) > _MANY_NAMES and _count_names(body) > _MANY_NAMES:
            raise errors.malformed(f"beside prompt and tools it has more than {_MANY_NAMES} names or colons")
        fields = _fields.decode(body)
    except UnicodeDecodeError as error:
        raise errors.malformed(f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise errors.malformed("it is nested too deeply") from None
    except msgspec.ValidationError:
        raise errors.malformed("it is not an object") from None
    except msgspec.DecodeError as error:
        raise errors.malformed(str(error) if body.strip() else "it is empty") from None
    if len(fields) > MAX_FIELDS:
        raise errors.malformed(f"it has {len(fields)} fields, and {MAX_FIELDS} are the most")
    streams = path in STREAMING_PATHS and _read_stream(fields)
    wants_usage = streams and _read_include_usage(fields)
    return Call(path, _read_model(bytes(fields.get("model", b"null"))), streams, wants_usage, fields)


def _count_names(body: bytes) -> int:
    """At least as many as there are fields."""
    colons = body.count(b":")
    if colons > _MANY_NAMES:
        found = _long_fields.decode(body)
        colons -= sum(bytes(getattr(found, name)).count(b":") for name in _LONG_FIELDS)
    return colons


def build_upstream_body(call: Call, served_name: str, *, ask_usage: bool = True) -> bytes:
    """The body for the engine, with its own model name; asks for usage in every stream (GW-12)."""
    fields = call.fields.copy()
    fields["model"] = write_name(served_name)
    if call.stream:
        options = _options(fields) or {}
        if ask_usage:
            options["include_usage"] = Raw(b"true")
            fields["stream_options"] = Raw(_encoder.encode(options))
        elif not call.wants_usage:
            fields.pop("stream_options", None)
    return _encoder.encode(fields)


def carry_trace(headers: Mapping[bytes, bytes]) -> bytes:
    """The caller's W3C trace context as whole header lines for the engine; nothing where it is none."""
    parent = headers.get(b"traceparent")
    if parent is None or not _TRACE_PARENT.fullmatch(parent):
        return b""
    state = headers.get(b"tracestate", b"")
    lines = b"traceparent: %b\r\n" % parent
    return lines + b"tracestate: %b\r\n" % state if _TRACE_STATE.fullmatch(state) else lines


def estimate_prompt_tokens(call: Call) -> int:
    """A count for engines that report none: text bytes / 4, token ids one each, images nothing. What is made
    of very many values counts as text: to make them all would stop the loop."""
    if call.prompt_tokens is not None:
        return call.prompt_tokens
    for name in _PROMPT_FIELDS:
        raw = call.fields.get(name)
        if raw is not None:
            prompt = bytes(raw)
            if sum(map(prompt.count, _VALUE_MARKS)) > _MANY_VALUES:
                return estimate_text_tokens(len(prompt))
            try:
                return _count(msgspec.json.decode(prompt))
            except (msgspec.DecodeError, RecursionError):
                # A number beyond all sizes, or nested too deeply: some engines take it, so it is counted.
                return estimate_text_tokens(len(prompt))
    return 0


def estimate_text_tokens(text_bytes: int) -> int:
    return math.ceil(text_bytes / TEXT_BYTES_PER_TOKEN)


@lru_cache(maxsize=1024)
def _read_model(raw: bytes) -> str:
    """The name that this JSON is; a few are asked for again and again."""
    if raw == b"null":
        raise errors.missing_model()
    try:
        model = msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        raise errors.bad_field("model", "expected a string") from None
    if not model.strip():
        raise errors.missing_model()
    if len(model) > MAX_MODEL_CHARS:
        raise errors.bad_field("model", f"expected at most {MAX_MODEL_CHARS} characters")
    return model


def _read_stream(fields: dict[str, Raw]) -> bool:
    # Raw compares by identity of its buffer, so its bytes are what must be compared.
    value = bytes(fields.get("stream", b"false"))
    if value == b"true":
        return True
    if value in (b"false", b"null"):
        return False
    raise errors.bad_field("stream", "expected true or false")


def _options(fields: dict[str, Raw]) -> dict[str, Raw] | None:
    raw = bytes(fields.get("stream_options", b"null"))
    if raw == b"null":
        return None
    try:
        return _fields.decode(raw)
    except msgspec.ValidationError:
        raise errors.bad_field("stream_options", "expected an object") from None


def _read_include_usage(fields: dict[str, Raw]) -> bool:
    """False is the same as absent: the caller sees no usage chunk, the engine is asked all the same."""
    options = _options(fields) or {}
    value = bytes(options.get("include_usage", b"false"))
    if value not in (b"true", b"false", b"null"):
        raise errors.bad_field("stream_options.include_usage", "expected true or false")
    return value == b"true"


def _count(prompt: Any) -> int:
    """Tokens of a decoded `messages`, `prompt` or `input`."""
    if isinstance(prompt, str):
        return estimate_text_tokens(len(prompt.encode()))
    if isinstance(prompt, list):
        if prompt and all(isinstance(item, int) for item in prompt):
            return len(prompt)
        return sum(_count(item) for item in prompt)
    if isinstance(prompt, dict):
        return _count(prompt.get("content", prompt.get("text")))
    return 0
