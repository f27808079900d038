"""What a shell hands to the gateway: one request, its body still to be read. Owns the shape only."""

from collections.abc import Callable, Mapping
from typing import Protocol

Grown = Callable[[int], None]
"""Gets how many bytes of a body there are by now. What it raises ends the reading."""


class CallerGone(Exception):
    """The caller left before its request was complete."""


class Asked(Protocol):
    """`path` is decoded and without its query; names in `headers` are lower case; `peer` is the address at
    the other end of the connection, "" where none is known."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def headers(self) -> Mapping[bytes, bytes]: ...

    @property
    def peer(self) -> str: ...

    def ready(self, most: int) -> bytes | None:
        """The whole body, if it is there already and shorter than that; to be asked for once."""

    async def body(self, limit: int, grown: Grown) -> bytes:
        """Waits for all of it, and tells meanwhile how much there is. Raises CallerGone, CallError 413 for
        more than `limit` bytes, and what `grown` does."""
