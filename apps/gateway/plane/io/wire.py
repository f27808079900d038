"""One answer as bytes of HTTP/1.1 on a caller's connection: headers and framing, nothing of its meaning."""

from collections.abc import Awaitable
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Protocol

from apps.gateway.plane.core.admission import BACKEND_HEADER
from apps.gateway.plane.io.reply import JSON, STREAM, Headers, Reply

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# All of them: an engine may refuse a call with one that has no name.
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode() for status in range(200, 600)
}


def _lines(headers: Headers) -> bytes:
    return b"".join(b"%b: %b\r\n" % header for header in headers)


_JSON_LINES = _lines(JSON)
_STREAM_LINES = _lines(STREAM)


class Line(Protocol):
    """The connection that an answer goes out on. `closes`: it ends with this answer."""

    @property
    def closes(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def end(self, head: bytes, body: bytes = b"") -> None:
        """The last bytes of the answer: they go out within this turn of the loop, after its record."""

    def owed(self) -> Awaitable[None] | None:
        """What to wait for before more is sent, if its caller reads too slowly."""


class WireReply(Reply):
    """`chunks`: the caller knows chunks (HTTP/1.1). `bare`: no body may follow (HEAD)."""

    _line: Line
    chunks: bool = True
    bare: bool = False

    def whole(self, status: int, body: bytes, headers: Headers = JSON) -> Awaitable[None] | None:
        line = self._line
        if headers is JSON and status == 200 and not (self.backend or line.closes):  # nearly all
            self.started = True
            head = _heads()[0] % (len(body), self.request_id.encode())
        else:
            lines = _JSON_LINES if headers is JSON else _lines(headers)
            head = self._head(status, b"%bcontent-length: %d\r\n" % (lines, len(body)))
        self.ended = True
        line.end(head, b"" if self.bare else body)
        return line.owed()

    def stream(self, body: bytes, *, last: bool = False) -> Awaitable[None] | None:
        line = self._line
        out = self._frame(body) if body else b""
        if not self.started:
            if self.chunks and not (self.backend or line.closes):  # nearly every stream
                self.started = True
                out = b"%bx-request-id: %b\r\n\r\n%b" % (_heads()[1], self.request_id.encode(), out)
            else:
                framing = b"transfer-encoding: chunked\r\n" if self.chunks else b""
                out = self._head(200, _STREAM_LINES + framing) + out
        if last:
            self.ended = True
            line.end(out + b"0\r\n\r\n" if self.chunks else out)
        else:
            line.write(out)
        return line.owed()

    def _frame(self, body: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(body), body) if self.chunks else body

    def _head(self, status: int, lines: bytes) -> bytes:
        self.started = True
        return b"%bdate: %b\r\n%bx-request-id: %b\r\n%b%b\r\n" % (
            _STATUS_LINES[status],
            _heads()[2],
            lines,
            self.request_id.encode(),
            b"%b: %b\r\n" % (BACKEND_HEADER, self.backend) if self.backend else b"",
            b"connection: close\r\n" if self._line.closes else b"",
        )


_made_at = 0.0
_heads_now = b"", b"", b""


def _heads() -> tuple[bytes, bytes, bytes]:
    """Of an ordinary whole answer, to be filled in with the length of the body and the request's id; of a
    stream up to that id; and the date in them, for which they are made once a second."""
    global _made_at, _heads_now
    now = time()
    if not 0 <= now - _made_at < 1:
        _made_at = now // 1
        date = formatdate(_made_at, usegmt=True).encode()
        begin = b"%bdate: %b\r\n" % (_STATUS_LINES[200], date)
        whole = b"%b%bcontent-length: %%d\r\nx-request-id: %%b\r\n\r\n" % (begin, _JSON_LINES)
        _heads_now = whole, b"%b%btransfer-encoding: chunked\r\n" % (begin, _STREAM_LINES), date
    return _heads_now
