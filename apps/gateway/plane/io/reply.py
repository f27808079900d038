"""One answer to a caller: what is sent when, whichever shell sends it. Knows nothing of what is answered."""

from collections.abc import Awaitable

import msgspec

from apps.gateway.plane.core.errors import CallError

Headers = tuple[tuple[bytes, bytes], ...]

JSON: Headers = ((b"content-type", b"application/json"),)
# Nothing between here and the caller may hold back or pack a stream (GW-09).
STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class Reply(msgspec.Struct, eq=False, kw_only=True):
    """`started`: a status went out; `ended`: the last byte was handed over. `request_id` goes out, too, and
    `backend`, the id of the backend that was asked, where the caller may know it ("" = says nothing).

    What `whole` and `stream` give back must be waited for before more is sent: the caller reads too slowly.
    None = nothing is owed.
    """

    request_id: str = "-"
    backend: bytes = b""
    started: bool = False
    ended: bool = False

    def whole(self, status: int, body: bytes, headers: Headers = JSON) -> Awaitable[None] | None:
        """Status, headers and body at once."""
        raise NotImplementedError

    def stream(self, body: bytes, *, last: bool = False) -> Awaitable[None] | None:
        """A piece of an event stream; its status and headers go before the first one."""
        raise NotImplementedError

    def error(self, fault: CallError) -> Awaitable[None] | None:
        """An OpenAI error object; only before anything else was sent."""
        headers = list(JSON)
        if fault.retry_after is not None:
            headers.append((b"retry-after", fault.retry_after.encode("latin-1", "replace")))
        if fault.allow is not None:
            headers.append((b"allow", fault.allow.encode()))
        if fault.accept_encoding is not None:
            headers.append((b"accept-encoding", fault.accept_encoding.encode()))
        if fault.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return self.whole(fault.status, fault.body(), tuple(headers))
