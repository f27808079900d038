"""Knows the head of a message again that was read before, by its bytes: all but the digits of its length.

A caller's connection brings the same head with nearly every call. Whatever was found in the first one holds
for those that are the same byte for byte. Owns that comparison only.
"""

import re

_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r\n")
MOST_BYTES = 8 * 1024
"""Longer heads are read each time."""


class Likeness:
    """Of a head that was read and found good, with one Content-Length and no other framing."""

    __slots__ = ("_after", "_before", "_length_at")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before, self._after = before, after
        self._length_at = len(before)

    def body(self, message: bytes) -> bytes | None:
        """The body of a message that has this head and is whole, without a byte more; None = it isn't so."""
        at = self._length_at
        if not message.startswith(self._before):
            return None
        end = message.find(b"\r", at, at + 10)
        digits = message[at:end]
        if end < 0 or not digits.isdigit() or not message.startswith(self._after, end):
            return None
        begin = end + len(self._after)
        return message[begin:] if len(message) - begin == int(digits) else None


def learn(message: bytes) -> Likeness | None:
    """By a whole message; None where its head says its length in another way, or is long."""
    end = message.find(b"\r\n\r\n", 0, MOST_BYTES) + 4
    found = _LENGTH.search(message, 0, end)
    if end < 4 or found is None:
        return None
    return Likeness(message[: found.start(1)], message[found.end(1) : end])
