"""Stands between a front proxy and the server, for heartbeats alone, and spoils their answers when told to.

The server gets every heartbeat, so it misses nobody: what is tried is what agents make of the answers.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agent.contract import wire
from agent.contract.messages import HeartbeatAnswer, HeartbeatReply

HANG_S = 8.0  # longer than an agent of the tests waits
# What becomes of the answer: as it is; an error; no answer in time; no task in it and said to be a part of
# the list; cut off in the middle; a page of somebody else's.
MODES = ("well", "error", "hang", "partial", "cut", "page")


class Switch:
    """`mode` is one of MODES; `seen` counts heartbeats by the mode that they met, `port` is its own."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.mode = "well"
        self.seen: Counter[str] = Counter()
        self.port = 0


@contextmanager
def switch(server_port: int) -> Iterator[Switch]:
    """On loopback, until the block ends."""
    made = Switch(server_port)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            line = HTTPConnection("127.0.0.1", made.server_port, timeout=20)
            try:
                line.request("POST", self.path, body, dict(self.headers.items()))
                answer = line.getresponse()
                status, content = answer.status, answer.read()
            except OSError:
                status, content = 502, b""
            finally:
                line.close()
            mode = made.mode
            made.seen[mode] += 1
            if mode == "hang":
                time.sleep(HANG_S)
            elif mode == "error":
                status, content = 500, b"Internal Server Error"
            elif mode == "page":
                status, content = 200, b"<html>Please sign in to this network.</html>"
            elif mode == "partial" and status == 200:
                known = wire.decode(content, HeartbeatAnswer)
                content = wire.encode(HeartbeatReply(known.desired_hash, complete=False, tasks=[]))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if mode == "cut" else content)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    made.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
