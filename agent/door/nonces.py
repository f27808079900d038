"""Which nonces the door has seen: each opens it once (AGENT-16).

Owns the memory, which is bounded. Only nonces of lines that were right get here, so a stranger can
not fill it. Reads no clock.
"""

from __future__ import annotations

import heapq


class Nonces:
    """Remembers each nonce until its line would be too old anyway. When full it takes no new one:
    to forget one early would let a used line in."""

    def __init__(self, longest: int = 200_000) -> None:
        self._longest = longest
        self._seen: set[str] = set()
        self._by_end: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._seen)

    def take(self, nonce: str, *, until_s: float, now_s: float) -> bool:
        """Whether this nonce is new; it is not from now on. `until_s`: when its line gets too old."""
        while self._by_end and self._by_end[0][0] < now_s:
            self._seen.discard(heapq.heappop(self._by_end)[1])
        if nonce in self._seen or len(self._seen) >= self._longest:
            return False
        self._seen.add(nonce)
        heapq.heappush(self._by_end, (until_s, nonce))
        return True
