"""How far a container's log was copied, so that it goes on without loss or doubles (AGENT-10). Pure
but for its own small file.

Docker finds a log's place by time only, and two streams may put times slightly out of order. So the
place is an anchor (the time of one line, later than all before it) and the number of lines copied
since; when copying begins again, Docker is asked from the anchor on and that many are passed over.
"""

from __future__ import annotations

import calendar
import time
from collections import deque
from pathlib import Path

import msgspec

from agent.wholefile import write_whole

STAMP = 30  # 2006-01-02T15:04:05.000000000Z
LAG_NS = 1_000_000_000  # no line is a second out of order
REMEMBERED = 100_000  # lines; about what a file of Docker's holds before it is rotated


class Place(msgspec.Struct):
    """`offset` is the length of the copy; `high` the latest time seen."""

    offset: int = 0
    anchor: str = ""
    copied: int = 0
    high: str = ""
    next_anchor: str = ""
    next_copied: int = 0

    @property
    def since_s(self) -> int:
        """Docker's `since`: the whole second of the anchor, 0 for the beginning."""
        return _nanoseconds(self.anchor) // 1_000_000_000 if self.anchor else 0

    def advance(self, stamp: str, size: int) -> None:
        """One line was copied."""
        self.offset += size
        if not self.anchor:
            self.anchor = self.high = stamp
        self.copied += stamp >= self.anchor
        if self.next_anchor:
            self.next_copied += stamp >= self.next_anchor
            if _nanoseconds(stamp) > _nanoseconds(self.next_anchor) + LAG_NS:
                self.anchor, self.copied = self.next_anchor, self.next_copied
                self.next_anchor, self.next_copied = "", 0
        elif stamp > self.high and _nanoseconds(stamp) > _nanoseconds(self.anchor) + LAG_NS:
            self.next_anchor, self.next_copied = stamp, 1
        self.high = max(self.high, stamp)


class Skipping:
    """Passes over what was copied before; one for each time that copying begins."""

    def __init__(self, place: Place) -> None:
        self._anchor = place.anchor
        self._left = place.copied
        self._high = place.high
        self._rotated: bool | None = None if place.anchor else False
        self.missing = False  # lines may have gone between what was copied and this frame

    def fresh(self, stamp: str) -> bool:
        """Whether this line is new. To be asked for every line, in Docker's order."""
        if not self._anchor:
            return True
        if stamp < self._anchor:
            return False
        if self._rotated is None:
            # Docker threw the anchor's line away meanwhile: then only times are left to go by
            self._rotated = stamp != self._anchor
            self.missing = self._rotated and stamp > self._high
        if self._rotated:
            return stamp > self._high
        if self._left > 0:
            self._left -= 1
            return False
        return True


class Repeats:
    """Notices lines that Docker gives a second time while it is followed: having rotated its file it may
    read the new one from its beginning twice. One for each time that copying begins."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._order: deque[int] = deque()
        self._high = ""

    def is_one(self, stamp: str, frame: bytes) -> bool:
        """Whether this line was given before; to be asked for every line. A part of a very long one bears the
        time of the whole, so that it may well equal the part before it."""
        one = hash(frame)
        if one in self._known and frame.endswith(b"\n"):
            return True
        if stamp < self._high and _nanoseconds(stamp) < _nanoseconds(self._high) - LAG_NS:
            return True
        self._high = max(self._high, stamp)
        if one not in self._known:
            self._known.add(one)
            self._order.append(one)
            if len(self._order) > REMEMBERED:
                self._known.discard(self._order.popleft())
        return False


def split_stamp(frame: bytes) -> tuple[str, bytes]:
    """Time and content of one frame of Docker's log. Raises ValueError for a frame without a time."""
    stamp = frame[:STAMP].decode("ascii", "replace")
    if len(frame) <= STAMP or stamp[10] != "T" or stamp[-1] != "Z" or frame[STAMP : STAMP + 1] != b" ":
        raise ValueError(f"a log frame without a time: {frame[:40]!r}")
    return stamp, frame[STAMP + 1 :]


def load_place(file: Path) -> Place:
    """The stored place; the beginning where there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Place)
    except (FileNotFoundError, msgspec.DecodeError):
        return Place()


def save_place(file: Path, place: Place) -> None:
    """Store it, as a whole or not at all. Raises OSError."""
    write_whole(file, msgspec.json.encode(place), lasting=False)  # for each round of a log


def _nanoseconds(stamp: str) -> int:
    whole = calendar.timegm(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S"))
    return whole * 1_000_000_000 + int(stamp[20:29])
