"""Events of a stream that differ in one text only, told and passed on many at a time (GW-15).

An engine's events are byte for byte alike but for the piece of text in each. Once one of them was read and
passed, those that follow and are like it need not be read again: what was true of the first is true of them.
Owns that comparison. Whatever is not exactly alike is left to be read event by event.
"""

import re
from operator import itemgetter

import msgspec

_STRING = re.compile(rb'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_SPECIAL = b'"\\' + bytes(range(0x20))
_NAMES = (b"content", b"text", b"reasoning_content", b"reasoning")
MOST_EVENT_BYTES = 64 * 1024
_ENDS = (b"\n\n", b"\r\n\r\n")


class Alike:
    """All events that begin and end as one that was passed. Those in the middle of a stream only: `read` must
    have found nothing in the first but its text."""

    __slots__ = ("_between", "_between_shown", "_head", "_head_shown", "_tail", "_tail_shown", "_text_of")

    def __init__(self, head: bytes, tail: bytes, head_shown: bytes, tail_shown: bytes) -> None:
        self._head, self._tail = head, tail
        self._head_shown, self._tail_shown = head_shown, tail_shown
        self._between, self._between_shown = tail + head, tail_shown + head_shown
        self._text_of = itemgetter(slice(len(head), -len(tail)))

    def cut(self, data: bytes) -> tuple[bytes, int, bytes] | None:
        """What the like events at the beginning of `data` are passed on as, how many of them have a text, and
        what is left, which may be all where the first isn't whole; None where that isn't like them."""
        head, tail = self._head, self._tail
        if not data.startswith(head):
            return (b"", 0, data) if head.startswith(data) else None
        parts = data.split(tail)
        rest = parts.pop()
        texts = [part.removeprefix(head) for part in parts]
        if self._are_all(data.removesuffix(rest), texts):
            return self._show(texts), len(texts) - texts.count(b""), rest
        return self._cut_carefully(data, parts, rest)

    def _cut_carefully(self, data: bytes, parts: list[bytes], rest: bytes) -> tuple[bytes, int, bytes] | None:
        """Where one of the texts has an escape in it, or one of the events is no like one."""
        head, size = self._head, len(self._head)
        texts = [part[size:] for part in parts if part.startswith(head)]
        if len(texts) < len(parts):
            first = next(at for at, part in enumerate(parts) if not part.startswith(head))
            rest = self._tail.join([*parts[first:], rest])
            del texts[first:]
        if not texts:
            return b"", 0, data
        if not all(_STRING.fullmatch(text) for text in texts):
            return None
        return self._show(texts), len(texts) - texts.count(b""), rest

    def pass_all(self, pieces: list[bytes]) -> tuple[bytes, int] | None:
        """What the pieces are passed on as, and how many of them have a text, where each is a like event and
        none has an escape in it; else None."""
        texts = list(map(self._text_of, pieces))
        if not self._are_all(b"".join(pieces), texts):
            return None
        return self._show(texts), len(texts) - texts.count(b"")

    def ends(self, piece: bytes) -> bool:
        """Whether a piece ends as a like event does."""
        return piece.endswith(self._tail)

    def _are_all(self, events: bytes, texts: list[bytes]) -> bool:
        """Whether these are like events with these texts, none of which has an escape or a quote in it."""
        if b"%b%b%b" % (self._head, self._between.join(texts), self._tail) != events:
            return False
        joined = b"".join(texts)
        return len(joined.translate(None, _SPECIAL)) == len(joined)

    def _show(self, texts: list[bytes]) -> bytes:
        return b"%b%b%b" % (self._head_shown, self._between_shown.join(texts), self._tail_shown)


def learn(event: bytes, shown: bytes, text: str) -> Alike | None:
    """What is alike about an event with this text, and about `shown`, as which it was passed on."""
    if (
        len(event) > MOST_EVENT_BYTES
        or not event.startswith(b"data: ")
        or not event.endswith(_ENDS)
        or event.count(b"\n") != 2
    ):
        return None
    for name in _NAMES:
        found, passed = _split(event, name), _split(shown, name)
        if found is not None and passed is not None and found[1] == passed[1]:
            return Alike(found[0], found[2], passed[0], passed[2]) if _reads(found[1], text) else None
    return None


def _reads(written: bytes, text: str) -> bool:
    try:
        return bool(msgspec.json.decode(b'"%b"' % written) == text)
    except msgspec.DecodeError:  # of a field that nobody has read, and no UTF-8
        return False


def _split(event: bytes, name: bytes) -> tuple[bytes, bytes, bytes] | None:
    """What is before, in and after the one text of this name. An escaped quote can't begin the mark: what
    follows it in there begins a text in either case."""
    mark = b'"%b":"' % name
    begin = event.find(mark) + len(mark)
    if begin < len(mark) or event.find(mark, begin) >= 0:
        return None
    found = _STRING.match(event, begin)
    end = begin if found is None else found.end()
    if event[end : end + 1] != b'"':
        return None
    return event[:begin], event[begin:end], event[end:]
