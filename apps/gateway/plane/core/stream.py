"""Follows one streamed answer: renames, hides, counts, and says how it ended (GW-09, GW-12).

Events pass as the engine wrote them unless `model` differs, usage must be hidden, or an error
must be told. Accounting that fails never fails the caller.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.alike import Alike, learn
from apps.gateway.plane.core.naming import swap_name, write_name
from apps.gateway.plane.core.sse import EventCutter, EventTooLong, event_data, event_field, replace_data
from apps.gateway.plane.core.told import upstream_reported
from apps.gateway.plane.core.usage import Usage, decode_usage, parse_usage

_DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
MOST_LESSONS = 8
"""How often what is alike is learnt in one stream: where events never are, it would be each time."""
MOST_LOOKS = 16
"""How often all that is left of one piece is compared with what is alike. Then it is read event by event,
lest an engine that mixes its events has all of it compared for each."""
MOST_HELD_BYTES = 1024
"""Of a half event that is longer the rest is waited for, and it is read for itself."""
_CONTENT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct):
    """What the gateway looks at in a chunk; unknown fields are skipped unread."""

    model: Any = None
    choices: list[_Choice] | None = None
    usage: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_chunks = msgspec.json.Decoder(_Chunk)
_fields = msgspec.json.Decoder(dict[str, Raw])
_encoder = msgspec.json.Encoder()


class StreamScanner:
    """State of one stream. Feed it bytes, send what it returns.

    `done`: the engine said [DONE]. `fault`: the engine broke the answer; its error event is in
    the bytes returned, nothing may follow. `usage`: the last reported counts. `pieces`: content
    pieces in the bytes returned so far.
    """

    __slots__ = (
        "_alike",
        "_cutter",
        "_hide_usage",
        "_kept_last",
        "_lessons",
        "_model",
        "_numbered",
        "done",
        "fault",
        "pieces",
        "usage",
    )

    def __init__(self, model: str, *, hide_usage: bool, max_event_bytes: int) -> None:
        self._cutter = EventCutter(max_event_bytes)
        self._model = model
        self._hide_usage = hide_usage
        self._alike: Alike | None = None
        self._lessons = MOST_LESSONS
        self._kept_last = True
        self._numbered = False
        self.done = False
        self.fault: errors.CallError | None = None
        self.usage: Usage | None = None
        self.pieces = 0

    @property
    def ended(self) -> bool:
        return self.done or self.fault is not None

    @property
    def between_events(self) -> bool:
        """Whether what was given back ends with a whole event that a comment may follow. After events with an
        id it may not: openai's own reader takes it for an event without data then."""
        return not (self.ended or self._numbered or self._cutter.may_owe_lf)

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the caller that `chunk` completed: whole events, maybe none."""
        out = bytearray()
        looks = MOST_LOOKS
        while not self.ended:
            if self._alike is not None and looks:
                passed, chunk = self._pass_alike(self._alike, chunk)
                if not chunk:
                    return bytes(out) + passed if out else passed
                out += passed
            learning = self._lessons > 0 and looks > 0
            read = self._read(chunk, one=learning)
            out += b"".join(read)
            if not learning or not read:
                break
            looks -= 1
            chunk = b""  # the rest is with the cutter; what was just learnt may hold for it
        return bytes(out)

    def _read(self, chunk: bytes, *, one: bool = False) -> list[bytes]:
        """What the events that `chunk` completed are passed on as, each one read; with `one` the first."""
        try:
            events = self._cutter.feed(chunk, one=one)
        except EventTooLong:
            self.fault = errors.upstream_unreadable("holds an event that is too long")
            return [self.fault.event()]
        passed = []
        for event in events:
            passed.append(self._pass(event))
            if self.ended:
                break
        return passed

    def feed_all(self, pieces: list[bytes]) -> bytes:
        """The same with all that has come, as it came: most engines send each event in a piece of its own."""
        out, rest = self.feed(pieces[0]), pieces[1:]
        alike, cutter = self._alike, self._cutter
        if self.ended or not rest:
            return out
        if alike is not None and not (cutter.held_bytes or cutter.may_owe_lf):
            end = len(rest)
            while end and not alike.ends(rest[end - 1]):
                end -= 1
            if (passed := alike.pass_all(rest[:end])) is not None:
                out += passed[0]
                self.pieces += passed[1]
                # None of the others ends as a like one: each of their events is read.
                return b"".join([out, *self._read(b"".join(rest[end:]))]) if end < len(rest) else out
        return out + self.feed(b"".join(rest))

    def _pass_alike(self, alike: Alike, chunk: bytes) -> tuple[bytes, bytes]:
        """What the next events are passed on as, as far as they are like the last one, and what follows."""
        if chunk and self._cutter.held_bytes > MOST_HELD_BYTES:
            return b"", chunk  # what is searched already is not searched again with each piece
        kept = self._cutter.take_rest()
        if kept is None:
            return b"", chunk
        chunk = kept + chunk
        cut = alike.cut(chunk) if chunk else None
        if cut is None:
            self._lessons -= bool(chunk and self._lessons)
            if not self._lessons:
                self._alike = None
            return b"", chunk
        passed, pieces, chunk = cut
        self.pieces += pieces
        return passed, chunk

    def close(self) -> bytes:
        """The upstream ended properly. Without [DONE] that is a broken answer, never a silent end."""
        if not self.ended and event_data(self._cutter.rest() + b"\n\n") == _DONE:
            self.done = True
            return DONE_EVENT
        return self.abort(errors.upstream_truncated)

    def abort(self, fault: Callable[[], errors.CallError]) -> bytes:
        """The error event for a stream that can't go on; nothing when it has already ended."""
        if self.ended:
            return b""
        self.fault = fault()
        return self.fault.event()

    def _pass(self, event: bytes) -> bytes:
        if event == b"\n":  # the second half of the line end of the event before
            return event if self._kept_last else b""
        passed = self._look(event)
        self._kept_last = bool(passed)
        return passed

    def _look(self, event: bytes) -> bytes:
        if event[:1] == b":" and event.count(b"\n") == 2 and b"\r" not in event:  # one comment
            return event
        data = event_data(event)
        if b"id:" in event and event_field(event, b"id") is not None:
            self._numbered = True
        if data is None:
            return self._fail(event_field(event, b"error")) if b"error:" in event else event
        if data == _DONE:
            self.done = True
            return event
        try:
            chunk = _chunks.decode(data)
        except (msgspec.ValidationError, RecursionError):
            return self._edit(event, data)
        except msgspec.DecodeError:
            return event
        if chunk.error is not UNSET and bytes(chunk.error) != b"null":
            return self._fail(data)
        choices = chunk.choices or []
        contents: list[Any] = []
        for choice in choices:
            if is_aborted(choice.finish_reason):
                self.fault = errors.upstream_aborted()
                return self.fault.event()
            contents = _contents(choice)
            self.pieces += bool(contents)
        shown = self._show(event, data, chunk, choices)
        # One text and nothing else that is counted or that ends the choice.
        if self._lessons and len(choices) == len(contents) == 1 and choices[0].finish_reason is None:
            text = contents[0]
            if isinstance(text, str):
                self._lessons -= 1
                self._alike = learn(event, shown, text)
        return shown

    def _show(self, event: bytes, data: bytes, chunk: _Chunk, choices: list[_Choice]) -> bytes:
        """What the caller sees of an event that is no error; also keeps the usage that it reports."""
        if chunk.usage is not UNSET:
            told = decode_usage(bytes(chunk.usage))
            self.usage = parse_usage(told) or self.usage
            if self._hide_usage:
                return b"" if told is not None and not choices else self._edit(event, data)
        if isinstance(chunk.model, str) and chunk.model != self._model:
            return swap_name(event, chunk.model, self._model) or self._edit(event, data)
        return event

    def _edit(self, event: bytes, data: bytes) -> bytes:
        """The event with the caller's model name and without usage, if that is to be hidden."""
        try:
            fields = _fields.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return event
        if self._hide_usage:
            fields.pop("usage", None)
        if bytes(fields.get("model", b"null")).startswith(b'"'):
            fields["model"] = write_name(self._model)
        return replace_data(event, _encoder.encode(fields))

    def _fail(self, data: bytes | None) -> bytes:
        """One well-formed error event in place of whatever form the engine's error has."""
        self.fault = upstream_reported(data or b"")
        return self.fault.event()


def is_aborted(finish_reason: Any) -> bool:
    """Whether an engine ended a choice by aborting it; some say it in an object."""
    if isinstance(finish_reason, dict):
        finish_reason = finish_reason.get("type")
    return bool(finish_reason == "abort")


def _contents(choice: _Choice) -> list[Any]:
    """What a choice brings to its caller, each under its name; nothing where it only opens or ends."""
    if choice.text:
        return [choice.text]
    delta = choice.delta
    return [delta[name] for name in _CONTENT_FIELDS if delta.get(name)] if delta else []
