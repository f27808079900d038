"""Requests that servers have read differently, and two ways to send them: to the listener, or by nginx.

Owns the bytes, and a small nginx of Debian in front of a port of this process. Judges nothing.
"""

import asyncio
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apps.gateway.plane.core.errors import CallError, body_too_slow
from apps.gateway.plane.io.asked import Asked
from apps.gateway.plane.io.reply import Reply
from tests.stack import free_port

PLAIN = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{behind}; }}
    }}
}}
"""

BODY_TIMEOUT_S = 1.0
LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
HIDDEN = b"GET /v1/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n"
IN_CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)


def by_length(length: bytes, body: bytes = HIDDEN) -> bytes:
    return LINE + b"Content-Length: " + length + b"\r\n\r\n" + body


def by_coding(coding: bytes, body: bytes = IN_CHUNK) -> bytes:
    return LINE + b"Transfer-Encoding: " + coding + b"\r\n\r\n" + body


def with_lines(*lines: bytes, body: bytes = b"") -> bytes:
    return LINE + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


SIZE = b"%d" % len(HIDDEN)
IN_ORDER = 12
"""So many of the shapes are in order and are taken."""
SHAPES: dict[str, bytes] = {
    # What is in order.
    "by length": by_length(SIZE),
    "by chunks": CHUNKED + IN_CHUNK,
    "chunk extensions": CHUNKED + b'2;a;b=c;d="e f"\r\n{}\r\n0;x\r\n\r\n',
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\nX-Sum: 1\r\nAuthorization: k\r\n\r\n",
    "Chunked in other letters": by_coding(b"ChUnKeD"),
    "zeros before a length": by_length(b"00" + SIZE),
    "zeros before a chunk's size": CHUNKED + b"0002\r\n{}\r\n000\r\n\r\n",
    "three in a row": by_length(b"2", b"{}") * 2,
    "empty lines before it": b"\r\n\r\n" + by_length(b"2", b"{}"),
    "a whole address": b"POST http://x/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
    "told to go on": with_lines(b"Expect: 100-continue", b"Content-Length: 2", body=b"{}"),
    "a body where none is usual": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    # Where a body ends.
    "length and chunks": with_lines(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=IN_CHUNK),
    "chunks and length": with_lines(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=IN_CHUNK),
    "two lengths": with_lines(b"Content-Length: 0", b"Content-Length: " + SIZE, body=HIDDEN),
    "two same lengths": with_lines(b"Content-Length: " + SIZE, b"Content-Length: " + SIZE, body=HIDDEN),
    "a list of lengths": by_length(SIZE + b", " + SIZE),
    "a plus before a length": by_length(b"+" + SIZE),
    "a minus before a length": by_length(b"-1"),
    "a length in hex": by_length(b"0x26"),
    "a length with a point": by_length(b"38.0"),
    "no length": by_length(b""),
    "spaces in a length": by_length(b"3 8"),
    "a length beyond all sizes": by_length(b"99999999999999999999999"),
    "a tab behind a length": by_length(SIZE + b"\t"),
    "a vertical tab before a length": by_length(b"\x0b" + SIZE),
    "a form feed behind a length": by_length(SIZE + b"\x0c"),
    "a letter behind a length": by_length(SIZE + b"a"),
    # Codings.
    "an unknown coding": by_coding(b"xchunked"),
    "chunked with a tail": by_coding(b"chunkedx"),
    "chunked, and another": by_coding(b"chunked, identity"),
    "another, and chunked": by_coding(b"gzip, chunked"),
    "chunked twice": by_coding(b"chunked, chunked"),
    "chunked in two headers": with_lines(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=IN_CHUNK
    ),
    "another in a header of its own": with_lines(
        b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=IN_CHUNK
    ),
    "a list of one": by_coding(b"chunked,"),
    "a list of none and one": by_coding(b", chunked"),
    "a coding with a parameter": by_coding(b"chunked;q=1"),
    "a coding in quotes": by_coding(b'"chunked"'),
    "a vertical tab before chunked": by_coding(b"\x0bchunked"),
    "a form feed behind chunked": by_coding(b"chunked\x0c"),
    "a no-break space before chunked": by_coding(b"\xa0chunked"),
    "identity alone": by_coding(b"identity", HIDDEN),
    "no coding": by_coding(b"", HIDDEN),
    "chunks in HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + IN_CHUNK,
    "a header that looks like it": with_lines(b"Transfer_Encoding: chunked", body=HIDDEN),
    # Inside of chunks.
    "a chunk's size in 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a plus before a chunk's size": CHUNKED + b"+2\r\n{}\r\n0\r\n\r\n",
    "a minus before a chunk's size": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n",
    "a chunk's size beyond all": CHUNKED + b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    "a chunk's size that wraps": CHUNKED + b"fffffffffffffffe\r\n{}\r\n0\r\n\r\n",
    "no chunk's size": CHUNKED + b"\r\n{}\r\n0\r\n\r\n",
    "a space before a chunk's size": CHUNKED + b" 2\r\n{}\r\n0\r\n\r\n",
    "a space behind a chunk's size": CHUNKED + b"2 \r\n{}\r\n0\r\n\r\n",
    "an underscore in a chunk's size": CHUNKED + b"0_2\r\n{}\r\n0\r\n\r\n",
    "a chunk that is longer than its size": CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "a chunk that is shorter than its size": CHUNKED + b"3\r\n{}\r\n0\r\n\r\n",
    "a bare LF behind a chunk's size": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "a bare LF behind a chunk": CHUNKED + b"2\r\n{}\n0\r\n\r\n",
    "a bare LF in an extension": CHUNKED + b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    "a bare CR in an extension": CHUNKED + b"2;a\rb\r\n{}\r\n0\r\n\r\n",
    "a bare LF at the end": CHUNKED + b"2\r\n{}\r\n0\n\n",
    "a trailer without a colon": CHUNKED + b"2\r\n{}\r\n0\r\nx\r\n\r\n",
    "a length in the trailers": CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 38\r\n\r\n" + HIDDEN,
    # The head.
    "bare LF": by_length(SIZE).replace(b"\r\n", b"\n", 3),
    "one bare LF": with_lines(b"X: a\nContent-Length: " + SIZE, body=HIDDEN),
    "a bare LF behind the request": LINE.replace(b"\r\n", b"\n", 1) + b"Content-Length: 0\r\n\r\n",
    "a bare CR in a value": with_lines(b"X: a\rContent-Length: " + SIZE, body=HIDDEN),
    "a header that goes on": with_lines(b"X: a", b" Content-Length: " + SIZE, body=HIDDEN),
    "a length in the next line": with_lines(b"Content-Length:", b" " + SIZE, body=HIDDEN),
    "a coding in the next line": with_lines(b"Transfer-Encoding:", b"\tchunked", body=IN_CHUNK),
    "a space before the first header": LINE[:36] + b" X: 1\r\n" + LINE[36:] + b"\r\n",
    "a space before a colon": with_lines(b"Content-Length : " + SIZE, body=HIDDEN),
    "a tab before a colon": with_lines(b"Transfer-Encoding\t: chunked", body=IN_CHUNK),
    "a zero in a name": with_lines(b"Content-Len\x00gth: " + SIZE, body=HIDDEN),
    "a zero in a value": with_lines(b"X: a\x00b"),
    "a zero in the path": LINE.replace(b"/v1", b"/\x00v1") + b"\r\n",
    "a control in a value": with_lines(b"X: a\x01b"),
    "a name of other letters": with_lines("Content-Lengthß: ".encode() + SIZE, body=HIDDEN),
    "a name with a bracket": with_lines(b"X(1): 1"),
    "a header without a colon": with_lines(b"X"),
    "a header without a name": with_lines(b": 1"),
    "no host": LINE.replace(b"Host: x\r\n", b"") + b"\r\n",
    "two hosts": with_lines(b"Host: y"),
    "two same hosts": with_lines(b"Host: x"),
    "a host with a space": LINE.replace(b"Host: x", b"Host: x y") + b"\r\n",
    "a host with a path": LINE.replace(b"Host: x", b"Host: x/y") + b"\r\n",
    "an upgrade": with_lines(b"Connection: Upgrade", b"Upgrade: websocket"),
    "HTTP/2 asked for": with_lines(
        b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: "
    ),
    # The first line.
    "HTTP/0.9": b"GET /v1/models\r\n",
    "HTTP/2.0": b"GET /v1/models HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/2's own first words": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/1.2": LINE.replace(b"1.1", b"1.2") + b"\r\n",
    "HTTP/1.10": LINE.replace(b"1.1", b"1.10") + b"\r\n",
    "HTTP in small letters": LINE.replace(b"HTTP", b"http") + b"\r\n",
    "a space in the path": LINE.replace(b"chat", b"ch at") + b"\r\n",
    "a tab in the path": LINE.replace(b"chat", b"ch\tat") + b"\r\n",
    "two spaces before the version": LINE.replace(b" HTTP", b"  HTTP") + b"\r\n",
    "a tab before the version": LINE.replace(b" HTTP", b"\tHTTP") + b"\r\n",
    "a space behind the version": LINE.replace(b"1.1\r", b"1.1 \r") + b"\r\n",
    "a space before the method": b" " + LINE + b"\r\n",
    "a method of no letters": LINE.replace(b"POST", b"PO@T") + b"\r\n",
    "a method in small letters": LINE.replace(b"POST", b"post") + b"\r\n",
    "a tunnel": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty host": LINE.replace(b"Host: x", b"Host:") + b"\r\n",
    "a host with a port": LINE.replace(b"Host: x", b"Host: [::1]:8443") + b"\r\n",
    "a host with a user": LINE.replace(b"Host: x", b"Host: a@x") + b"\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
    # Too much.
    "a long line": with_lines(b"X: " + b"y" * 40_000),
    "a long path": LINE.replace(b"chat", b"y" * 40_000) + b"\r\n",
    "a long head": with_lines(*(b"X-%d: %b" % (number, b"y" * 7000) for number in range(6))),
    "many lines": with_lines(*(b"X-%d: 1" % number for number in range(200))),
}


class Seen:
    """A gateway that answers with what it was asked, and keeps it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes]] = []

    def write_records(self) -> None:
        """Nothing is recorded here."""

    async def answer(self, asked: Asked, reply: Reply) -> None:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await asked.body(1_000_000, lambda size: None)
        except TimeoutError:
            reply.error(body_too_slow(BODY_TIMEOUT_S))
            return
        except CallError as fault:
            reply.error(fault)
            return
        self.asked.append((asked.method, asked.path, body))
        said = json.dumps({"asked": len(self.asked), "path": asked.path}).encode()
        if (owed := reply.whole(200, said)) is not None:
            await owed


async def say(port: int, *said: bytes, context: ssl.SSLContext | None = None) -> tuple[list[int], list[str]]:
    """Sends the bytes piece by piece and reads to the end: the statuses, and the paths that were answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    got = b""
    try:
        for piece in said:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while piece := await reader.read(65536):
                got += piece
    except ConnectionResetError:
        pass  # it closed while something was still being sent; what it said before counts
    finally:
        writer.close()
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)]
    paths = [json.loads(part)["path"] for part in re.findall(rb'\{"asked": [^}]*\}', got)]
    return [status for status in statuses if status >= 200], paths


@contextmanager
def plain_nginx(folder: Path, behind: int) -> Iterator[int]:
    """Debian's nginx as it comes, in front of a port of this machine; gives its own."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.fail("what nginx says needs nginx of Debian")
    port = free_port()
    folder.mkdir()
    main = folder / "nginx.conf"
    main.write_text(PLAIN.format(folder=folder, port=port, behind=behind))
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", program, "-e", "stderr", "-p", str(folder), "-c", str(main)],
        stdin=subprocess.DEVNULL,
    )
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)
