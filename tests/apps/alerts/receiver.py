"""A webhook's other end on loopback: keeps what it got, answers as told, or drips."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Receiver:
    """`status` is what it answers; `location` is where a redirect leads; `got` is (headers, body)."""

    def __init__(self) -> None:
        self.status, self.location = 204, ""
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.got.append((dict(self.headers.items()), body))
            self.send_response(kept.status)
            if kept.location:
                self.send_header("Location", kept.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    kept.url = f"http://127.0.0.1:{server.server_port}/hook?a=1"
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def dripping(*, before: bytes = b"HTTP/1.1 ", gap_s: float = 0.02) -> Iterator[str]:
    """The address of a receiver that answers `before` and then one byte after the other without an end."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as caller:
            try:
                caller.sendall(before)
                while not over.wait(gap_s):
                    caller.sendall(b"2")
            except OSError:  # the caller has left
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            over.set()
