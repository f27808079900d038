"""An engine of the soak: answers as vLLM does, and goes wrong as its standard input orders.

    python -m bench.gateway_soak.engine PORT JOURNAL GAP_S

Each line there is a mode: `well`, `hang`, `reset` or `garbage`. It meets the calls that run, wherever they
are, those that come, and the connections that wait for one. To JOURNAL it appends a line for each step of a
call: moment (monotonic ns), request id, step. A call whose last step is `begun` was under way when the
process was killed. Standard library only, so that it is back at once.
"""

import asyncio
import json
import os
import socket
import struct
import sys
import time

MODEL = "engine-name"
PIECES = 20
PROMPT_TOKENS = 7
TEXT = "".join(f"w{number} " for number in range(PIECES))
POISON = "an answer that nobody asked for"
RESET = struct.pack("ii", 1, 0)  # no lingering: the other side gets a reset
USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": PIECES,
    "total_tokens": PROMPT_TOKENS + PIECES,
}


class Engine:
    """What its connections share."""

    def __init__(self, journal: int, gap_s: float) -> None:
        self._journal = journal
        self.gap_s = gap_s
        self.mode = "well"
        self.lines: set[Line] = set()

    def order(self, mode: str) -> None:
        self.mode = mode
        for line in list(self.lines):
            line.obey()

    def note(self, request_id: str, step: str) -> None:
        os.write(self._journal, f"{time.monotonic_ns()} {request_id} {step}\n".encode())


class Line(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._data = b""
        self._spoilt = self._stream = False
        self._wants_usage = False
        self._sent = 0
        self._call = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._engine.lines.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.lines.discard(self)
        self._end("left")

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, mark, body = self._data.partition(b"\r\n\r\n")
        if not mark:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields.get(b"content-length", 0)):
            return
        self._data = b""
        if head.startswith(b"GET "):
            if self._engine.mode == "well":
                self._say(b"{}")
            else:
                self.obey()
            return
        asked = json.loads(body)
        self._call, self._sent = fields[b"x-request-id"].decode(), 0
        self._stream = bool(asked.get("stream"))
        self._wants_usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        self._engine.note(self._call, "begun")
        if self._engine.mode == "well" and not self._spoilt:
            self._timer = self._loop.call_later(self._engine.gap_s, self._go_on)
        else:
            self.obey()

    def obey(self) -> None:
        """What is ordered meets this connection now."""
        mode = "garbage" if self._spoilt else self._engine.mode
        if mode == "well":
            return
        call, begun = self._call, self._sent > 0
        self._end(mode)
        if mode == "reset":
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._transport.abort()
        elif mode == "garbage":
            self._spoilt = True
            if not call:
                self._say(self._whole(POISON))
            else:
                self._transport.write(b"b\r\ndata: \xff\xfe{\n\n\r\nzz\r\n" if begun else b"SSH-2.0-soak\r\n")
                self._transport.close()

    def _go_on(self) -> None:
        if not self._stream:
            self._say(self._whole(TEXT))
            self._end("served")
            return
        if not self._sent:
            kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            self._transport.write(b"HTTP/1.1 200 OK\r\n" + kind)
        if self._sent < PIECES:
            self._event([{"index": 0, "delta": {"content": f"w{self._sent} "}, "finish_reason": None}])
            self._sent += 1
            self._timer = self._loop.call_later(self._engine.gap_s, self._go_on)
            return
        self._event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if self._wants_usage:
            self._event([], usage=USAGE)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")
        self._end("served")

    def _end(self, step: str) -> None:
        """The call is over for this engine, if there is one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._call:
            self._engine.note(self._call, step)
            self._call = ""

    def _whole(self, text: str) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return json.dumps({"id": "x", "model": MODEL, "choices": [choice], "usage": USAGE}).encode()

    def _say(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)

    def _event(self, choices: list[dict], **more: object) -> None:
        told = {"id": "x", "object": "chat.completion.chunk", "model": MODEL, "choices": choices, **more}
        self._chunk(b"data: " + json.dumps(told).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(content), content))


async def serve(port: int, journal: int, gap_s: float) -> None:
    """Until standard input ends."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    engine = Engine(journal, gap_s)

    def read() -> None:
        orders = os.read(0, 4096).decode().split()
        for mode in orders:
            engine.order(mode)
        if not orders:
            ended.set()

    loop.add_reader(0, read)
    await loop.create_server(lambda: Line(engine), "127.0.0.1", port, backlog=1024)
    await ended.wait()


if __name__ == "__main__":
    place = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    asyncio.run(serve(int(sys.argv[1]), place, float(sys.argv[3])))
