"""Room for big request bodies: how many bytes of them a gateway holds at once, and one tenant of them.

Owns the count only. A body takes room as it comes, so that neither many big ones can fill the memory that
everybody's calls need, nor those that are announced and don't come the room.
"""

from collections import Counter

from apps.gateway.plane.core import errors
from apps.gateway.plane.core.config import GatewayConfig


class Room:
    """`held`: bytes by tenant."""

    def __init__(self, config: GatewayConfig) -> None:
        # One body always has room.
        self._most = max(config.big_bodies_bytes, config.max_body_bytes)
        self._most_of_one = max(config.big_bodies_bytes // 2, config.max_body_bytes)
        self._retry_after_s = config.retry_after_s
        self.held: Counter[str] = Counter()

    def of(self, tenant_id: str) -> "Kept":
        """What a call of this tenant keeps: nothing yet."""
        return Kept(self, tenant_id)

    def resize(self, tenant_id: str, before: int, now: int) -> None:
        """Raises CallError 503 where it would be more than there is."""
        grown = now - before
        if grown > 0:
            if self.held[tenant_id] + grown > self._most_of_one:
                raise errors.no_room(now, self._most_of_one, "one tenant", self._retry_after_s)
            if self.held.total() + grown > self._most:
                raise errors.no_room(now, self._most, "all callers", self._retry_after_s)
        self.held[tenant_id] += grown
        if not self.held[tenant_id]:
            del self.held[tenant_id]


class Kept:
    """The room that one call has, until it is left."""

    __slots__ = ("_room", "_tenant_id", "size")

    def __init__(self, room: Room, tenant_id: str) -> None:
        self._room, self._tenant_id, self.size = room, tenant_id, 0

    def resize(self, size: int) -> None:
        """Raises CallError 503 where there is no room for so much."""
        self._room.resize(self._tenant_id, self.size, size)
        self.size = size

    def __enter__(self) -> "Kept":
        return self

    def __exit__(self, *_: object) -> None:
        self.resize(0)
