"""Where only tenants out of a set are: by card, living on a node, and with the host's network or IPC.

Owns who is where, as bits: each set that is asked for (`Circle`) has one, which is set wherever somebody
outside of it is. So a booking writes as much whether few sets are asked for or many.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from apps.scheduling.policy.lanes import Array, Bools

BITS = 62  # of a word
_NONE: Array = np.array([], np.int64)


class Circle(NamedTuple):
    """A set of tenants: a bit of a word. Of several sets in one word `bit` is an array."""

    word: int
    bit: Any


Friends = frozenset[int] | Circle


class Crowd:
    """Who is in the lanes of one column: told by `came`, where a lane is its place in the flat column."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._words: list[Array] = []
        self.cells: list[memoryview] = []  # of the words
        self.lanes: list[int] = []
        self.tenants: list[int] = []
        self._first: tuple[Array, Array, Array] = (_NONE, _NONE, _NONE)  # of those, as arrays

    def only(self, circle: Circle, where: Any) -> Bools:
        """In which lanes of some nodes nobody is but those of the circle."""
        word = self._words[circle.word]
        part = word.take(where, axis=-1) if isinstance(where, np.ndarray) else word[..., where]
        only: Bools = (part & circle.bit) == 0
        return only

    def is_only(self, circle: Circle, lane: int) -> bool:
        """The same of one lane."""
        return not self.cells[circle.word][lane] & circle.bit

    def mark(self, circle: Circle, friends: frozenset[int]) -> None:
        """Set the bit of a new circle."""
        if circle.word == len(self._words):
            word: Any = np.zeros(self._shape, np.int64)
            self._words.append(word)
            self.cells.append(memoryview(word.reshape(-1)))
        lanes, which, kinds = self._arrays()
        outside = np.array([tenant not in friends for tenant in kinds.tolist()], np.bool_)
        self._words[circle.word].reshape(-1)[lanes[outside[which]]] |= circle.bit

    def forget(self, count: int) -> None:
        """The last so many that came leave again; the bits are `Circles.rewrite`'s."""
        keep = len(self.lanes) - count
        del self.lanes[keep:], self.tenants[keep:]
        if len(self._first[0]) > keep:
            self._first = (_NONE, _NONE, _NONE)

    def _arrays(self) -> tuple[Array, Array, Array]:
        """(Lanes, which tenant is there as a place in the third, tenants.)"""
        if len(self._first[0]) != len(self.lanes):
            kinds, which = np.unique(np.array(self.tenants, np.int64), return_inverse=True)
            self._first = (np.array(self.lanes, np.int64), which, kinds)
        return self._first


class Circles:
    """The crowds of a fleet of so many nodes, of so many cards at the most, and the circles among them."""

    def __init__(self, width: int, count: int) -> None:
        self._count = count
        self.cards = Crowd((width, count))
        self.living = Crowd((count,))
        self.wide = Crowd((count,))
        self._known: dict[frozenset[int], Circle] = {}
        self._outside: dict[int, tuple[tuple[int, int], ...]] = {}

    def of(self, friends: Friends) -> Circle:
        """The circle of these tenants."""
        if isinstance(friends, Circle):
            return friends
        found = self._known.get(friends)
        if found is None:
            word, at = divmod(len(self._known), BITS)
            found = self._known[friends] = Circle(word, 1 << at)
            for crowd in (self.cards, self.living, self.wide):
                crowd.mark(found, friends)
            self._outside.clear()
        return found

    def come(self, tenant: int, place: int, slots: Iterable[int], *, settles: bool, wide: bool) -> None:
        """A tenant comes to a node and these cards of it; `settles`, `wide` as in `rooms.Booking`."""
        bits = self._bits_of(tenant)
        for slot in slots:
            _come(self.cards, tenant, slot * self._count + place, bits)
        if settles:
            _come(self.living, tenant, place, bits)
        if wide:
            _come(self.wide, tenant, place, bits)

    def rewrite(self, crowd: Crowd, lane: int, tenants: Iterable[int]) -> None:
        """These and no others are in a lane by now."""
        for cells in crowd.cells:
            cells[lane] = 0
        for tenant in frozenset(tenants):
            for word, bits in self._bits_of(tenant):
                crowd.cells[word][lane] |= bits

    def _bits_of(self, tenant: int) -> tuple[tuple[int, int], ...]:
        """Those of the circles that it is not of, by word."""
        found = self._outside.get(tenant)
        if found is None:
            words: dict[int, int] = {}
            for friends, circle in self._known.items():
                if tenant not in friends:
                    words[circle.word] = words.get(circle.word, 0) | circle.bit
            found = self._outside[tenant] = tuple(words.items())
        return found


def _come(crowd: Crowd, tenant: int, lane: int, bits: tuple[tuple[int, int], ...]) -> None:
    crowd.lanes.append(lane)
    crowd.tenants.append(tenant)
    for word, some in bits:
        crowd.cells[word][lane] |= some
