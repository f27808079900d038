"""Where only tenants out of a set are: by card, living on a node, and with the host's network or IPC.

Owns who is where, as bits: each set that is asked for (`Circle`) has one, which is set wherever somebody
outside of it is. So a booking writes as much whether few sets are asked for or many.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from apps.scheduling.policy.lanes import Array, Bools

if TYPE_CHECKING:
    from apps.scheduling.policy.rooms import Booking

BITS = 62  # of a word

Bits = tuple[tuple[int, int], ...]  # by word


class Circle(NamedTuple):
    """A set of tenants: a bit of a word. Of several sets in one word `bit` is an array."""

    word: int
    bit: Any


Friends = frozenset[int] | Circle


class Crowd:
    """Who is in the lanes of one column, a lane being a place in the flat column. `lanes` and `tenants` tell
    who was there at first."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._words: list[Array] = []
        self.cells: list[memoryview] = []  # of the words
        self.lanes: list[int] = []
        self.tenants: list[int] = []
        self._first: tuple[Array, Array, Array] | None = None  # of those, as arrays

    def only(self, circle: Circle, where: Any) -> Bools:
        """In which lanes of some nodes nobody is but those of the circle."""
        word = self._words[circle.word]
        part = word.take(where, axis=-1) if isinstance(where, np.ndarray) else word[..., where]
        only: Bools = (part & circle.bit) == 0
        return only

    def is_only(self, circle: Circle, lane: int) -> bool:
        """The same of one lane."""
        return not self.cells[circle.word][lane] & circle.bit

    def mark(self, word: int, circles: Mapping[frozenset[int], Circle]) -> None:
        """Set the bits of new circles of a word, as it was at first."""
        if word == len(self._words):
            bits: Any = np.zeros(self._shape, np.int64)
            self._words.append(bits)
            self.cells.append(memoryview(bits.reshape(-1)))
        if self._first is None:
            kinds, which = np.unique(np.array(self.tenants, np.int64), return_inverse=True)
            self._first = (np.array(self.lanes, np.int64), which, kinds)
        lanes, which, kinds = self._first
        outside = [_outside(tenant, circles).get(word, 0) for tenant in kinds.tolist()]
        np.bitwise_or.at(self._words[word].reshape(-1), lanes, np.array(outside, np.int64)[which])


class Circles:
    """The crowds of a fleet of so many nodes, of so many cards at the most, and the circles among them;
    `bookings` by place."""

    def __init__(self, width: int, count: int, bookings: "Mapping[int, Sequence[Booking]]") -> None:
        self._count = count
        self._bookings = bookings
        self.cards = Crowd((width, count))
        self.living = Crowd((count,))
        self.wide = Crowd((count,))
        self._known: dict[frozenset[int], Circle] = {}
        self._bits: dict[int, Bits] = {}

    def of(self, friends: Friends) -> Circle:
        """The circle of these tenants."""
        if isinstance(friends, Circle):
            return friends
        found = self._known.get(friends)
        if found is None:
            self.know([friends])
            found = self._known[friends]
        return found

    def know(self, sets: Iterable[frozenset[int]]) -> None:
        """Make circles of all these at once."""
        new: dict[frozenset[int], Circle] = {}
        for friends in sets:
            if friends not in self._known:
                word, at = divmod(len(self._known), BITS)
                self._known[friends] = new[friends] = Circle(word, 1 << at)
        if not new:
            return
        for word in sorted({circle.word for circle in new.values()}):
            for crowd in (self.cards, self.living, self.wide):
                crowd.mark(word, new)
        self._bits.clear()
        for place, booked in self._bookings.items():
            for one in booked:
                self.come(one.task.tenant_id, place, one.slots, wide=one.wide)

    def come(self, tenant: int, place: int, slots: Iterable[int], *, wide: bool) -> None:
        """A tenant comes to a node and these cards of it; `wide` as in `rooms.Booking`."""
        for word, bits in self._bits.get(tenant) or self._bits_of(tenant):
            cells = self.cards.cells[word]
            for slot in slots:
                cells[slot * self._count + place] |= bits
            self.living.cells[word][place] |= bits
            if wide:
                self.wide.cells[word][place] |= bits

    def rewrite(self, crowd: Crowd, lane: int, tenants: Iterable[int]) -> None:
        """These and no others are in a lane by now."""
        for cells in crowd.cells:
            cells[lane] = 0
        for tenant in frozenset(tenants):
            for word, bits in self._bits_of(tenant):
                crowd.cells[word][lane] |= bits

    def _bits_of(self, tenant: int) -> Bits:
        """Those of the circles that it is not of."""
        found = self._bits.get(tenant)
        if found is None:
            found = self._bits[tenant] = tuple(_outside(tenant, self._known).items())
        return found


def _outside(tenant: int, circles: Mapping[frozenset[int], Circle]) -> dict[int, int]:
    """The bits of the circles that a tenant is not of, by word."""
    words: dict[int, int] = {}
    for friends, circle in circles.items():
        if tenant not in friends:
            words[circle.word] = words.get(circle.word, 0) | circle.bit
    return words
