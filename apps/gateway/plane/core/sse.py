"""Cuts a server-sent event stream into whole events, wherever its bytes were split.

Owns the framing rules of the WHATWG event stream format (LF, CRLF and CR line ends, comments,
multi-line data) and nothing of OpenAI. Bytes of an event are never changed here.
"""

import re

# A line end, then a blank line's end; atomic, so that CR LF is never read as two line ends. Further blank
# lines go with it: a flood of them is one event.
_EVENT_END = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)[\r\n]*+")
_BOM = b"\xef\xbb\xbf"


class EventTooLong(Exception):
    """An event grew past the limit without its end in sight."""


class EventCutter:
    """Feeds on bytes, gives whole events with their own line ends.

    An event that ends in a lone CR at the end of a chunk is given at once; the LF that may follow
    comes back from the next `feed` as the event `b"\\n"`, so that no byte waits for another.
    """

    __slots__ = ("_buffer", "_has_cr", "_limit", "_may_owe_lf", "_searched")

    def __init__(self, limit: int) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._searched = 0
        self._may_owe_lf = self._has_cr = False

    def feed(self, chunk: bytes, *, one: bool = False) -> list[bytes]:
        """The events that `chunk` completed, in order; with `one` only the first, the rest is kept.

        Raises EventTooLong when what is left over is longer than the limit in bytes; where there are events
        to give, the next time.
        """
        events: list[bytes] = []
        if self._may_owe_lf and chunk:
            self._may_owe_lf = False
            if chunk[:1] == b"\n":
                events.append(b"\n")
                chunk = chunk[1:]
        buffer = self._buffer
        self._has_cr = (self._has_cr and bool(buffer)) or b"\r" in chunk
        buffer += chunk
        begin = 0
        search = max(0, self._searched - 3)
        find_end = _find_end if self._has_cr else _find_plain_end
        while end := find_end(buffer, search):
            events.append(bytes(buffer[begin:end]))
            begin = search = end
            if one:
                break
        if begin:
            self._may_owe_lf = begin == len(buffer) and buffer[-1:] == b"\r"
            del buffer[:begin]
        self._searched = 0 if one and begin else len(buffer)
        if len(buffer) > self._limit and not events:
            raise EventTooLong
        return events

    @property
    def may_owe_lf(self) -> bool:
        """Whether the line end of the last event may still want its second half."""
        return self._may_owe_lf

    @property
    def held_bytes(self) -> int:
        """How much of a half event is kept."""
        return len(self._buffer)

    def take_rest(self) -> bytes | None:
        """The half event that was kept, which whoever takes it puts before the next bytes; None where the end
        of the event before may not be whole."""
        if self._may_owe_lf:
            return None
        if not self._buffer:
            return b""
        rest = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest

    def rest(self) -> bytes:
        """What came after the last whole event; at the end of a stream it is half an event."""
        return bytes(self._buffer)


def _find_end(buffer: bytearray, start: int) -> int:
    """Where the first event after `start` ends; 0 where none does."""
    match = _EVENT_END.search(buffer, start)
    return 0 if match is None else match.end()


def _find_plain_end(buffer: bytearray, start: int) -> int:
    """The same where all line ends are LF, as nearly always."""
    found = buffer.find(b"\n\n", start)
    if found < 0:
        return 0
    return _find_end(buffer, found) if buffer[found + 2 : found + 3] == b"\n" else found + 2


def event_data(event: bytes) -> bytes | None:
    """The data of an event, its lines joined by LF; None when it has none (a comment, a blank)."""
    if _is_plain(event):
        return event[6:-2]
    found = [value for name, value in _fields(event) if name == b"data"]
    return b"\n".join(found) if found else None


def event_field(event: bytes, wanted: bytes) -> bytes | None:
    """The last value of a named field, e.g. `event`."""
    found = [value for name, value in _fields(event) if name == wanted]
    return found[-1] if found else None


def replace_data(event: bytes, data: bytes) -> bytes:
    """The same event with other data (one line); all other lines and line ends stay."""
    if _is_plain(event):
        return b"data: %b\n\n" % data
    lines = []
    replaced = False
    # bytes.splitlines knows CR, LF and CRLF only: U+2028 and its kind stay inside a line.
    for line in event.splitlines(keepends=True):
        bare = line.rstrip(b"\r\n")
        if bare.removeprefix(_BOM).partition(b":")[0] != b"data":
            lines.append(line)
        elif not replaced:
            lines.append(b"data: " + data + line[len(bare) :])
            replaced = True
    return b"".join(lines)


def _is_plain(event: bytes) -> bool:
    """One line of data and no more; nearly all events of all engines look like this."""
    return event.startswith(b"data: ") and event.count(b"\n") == 2 and b"\r" not in event


def _fields(event: bytes) -> list[tuple[bytes, bytes]]:
    fields = []
    for line in event.removeprefix(_BOM).splitlines():
        name, _, value = line.partition(b":")
        fields.append((name, value.removeprefix(b" ")))
    return fields
