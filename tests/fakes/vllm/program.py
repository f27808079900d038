#!/usr/local/bin/python3
"""Stands for `vllm serve` where no card is: it speaks health, models, completions, metrics and the sleep
routes as vLLM 0.32 was recorded, and generates nothing: the answer is always the same words. As a stage of
several nodes it waits for the others at the master's address, and ends when it loses one of them.

What it does otherwise than well is ordered by its environment (FAKE_VLLM_*), by POST /fake (over its
restarts too, for the order is kept in its container), and by a file in its model's folder, which counts
most. Standard library only.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

WORDS = ["Hello", " from", " the", " fake", " vllm", "."]
NONSENSE = "!"
PROMPT_TOKENS = 21
ORDERS = "fake-vllm.json"
KEPT = Path(os.environ.get("FAKE_VLLM_KEPT", "/tmp")) / ORDERS
# name -> what it is without an order
PLAN = {
    "load_s": 0.0,  # until it listens
    "load_tells": True,  # a line of log each time it has got further
    "gap_s": 0.0,  # between two tokens
    "frozen": False,  # requests run and no token is made
    "chat": "ok",  # ok, error, empty, hang
    "sleep": "ok",  # ok, error, hang
    "health": "ok",  # ok, error
    "term": "ok",  # ok, ignore
    "exit_code": None,  # end with it, at once or as soon as it listens
}


class Engine:
    """What the program knows of itself."""

    def __init__(self, model: str, served: str) -> None:
        self.model, self.served = model, served
        self.plan = dict(PLAN)
        for name, usual in PLAN.items():
            text = os.environ.get(f"FAKE_VLLM_{name.upper()}")
            if text is not None:
                self.plan[name] = text if isinstance(usual, str) else json.loads(text)
        for file in (KEPT, Path(model) / ORDERS):
            with contextlib.suppress(FileNotFoundError):
                self.plan |= json.loads(file.read_text())
        self.key = os.environ.get("VLLM_API_KEY", "")
        self.dev_mode = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        self.lock = threading.Lock()
        self.running = self.generated = self.prompted = 0
        self.asleep_level: int | None = None
        self.weights = True

    def order(self, changes: dict[str, object]) -> None:
        self.plan |= changes
        part = KEPT.with_suffix(".part")
        part.write_text(json.dumps(self.plan))
        part.replace(KEPT)
        self.leave_if_told()

    def leave_if_told(self) -> None:
        if self.plan["exit_code"] is not None:
            code = int(self.plan["exit_code"])
            self.plan["exit_code"] = None
            KEPT.write_text(json.dumps(self.plan))  # once: the next start is a good one
            say(f"ends with {code}, as ordered")
            os._exit(code)

    def load(self) -> None:
        """Take as long as ordered before listening, in steps that are seen in the log."""
        began = time.monotonic()
        said = 0
        while (passed := time.monotonic() - began) < float(self.plan["load_s"]):
            if self.plan["load_tells"] and passed > said * 0.2:
                said += 1
                say(f"Loading safetensors checkpoint shards: step {said}")
            time.sleep(0.05)

    def tokens(self, most: int):
        """The words one by one, at the ordered pace; what sleeps without its weights answers nonsense."""
        for number in range(min(most, len(WORDS))):
            while self.plan["frozen"]:
                time.sleep(0.05)
            time.sleep(float(self.plan["gap_s"]))
            with self.lock:
                self.generated += 1
            yield WORDS[number] if self.weights else NONSENSE

    def metrics(self) -> str:
        labels = f'{{engine="0",model_name="{self.served}"}}'
        values = {
            "vllm:num_requests_running": ("gauge", self.running),
            "vllm:num_requests_waiting": ("gauge", 0),
            "vllm:prompt_tokens_total": ("counter", self.prompted),
            "vllm:generation_tokens_total": ("counter", self.generated),
        }
        lines = []
        for name, (kind, value) in values.items():
            lines += [f"# HELP {name} .", f"# TYPE {name} {kind}", f"{name}{labels} {float(value)}"]
        return "\n".join(lines) + "\n"


def say(text: str) -> None:
    print(f"INFO {time.strftime('%m-%d %H:%M:%S')} [fake_vllm] {text}", flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "uvicorn", ""
    engine: Engine

    def log_message(self, *_: object) -> None:
        return

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path in ("/health", "/ping"):
            self.send(b"", 200 if self.engine.plan["health"] == "ok" else 503)
        elif path == "/version":
            self.send_json({"version": "0.32.0"})
        elif path == "/metrics":
            self.send(self.engine.metrics().encode(), 200, "text/plain; version=0.0.4")
        elif path == "/is_sleeping" and self.engine.dev_mode:
            self.send_json({"is_sleeping": self.engine.asleep_level is not None})
        elif path == "/v1/models" and self.allowed():
            self.send_json({"object": "list", "data": [self.model_row()]})
        elif not path.startswith("/v1/"):
            self.send_json({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        url = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if url.path == "/fake":
            self.engine.order(json.loads(raw))
            self.send_json(self.engine.plan)
        elif url.path == "/sleep" and self.engine.dev_mode:
            self.sleep(int(parse_qs(url.query).get("level", ["1"])[0]))
        elif url.path == "/wake_up" and self.engine.dev_mode:
            self.engine.asleep_level = None
            self.send_json({"status": "awake", "tags": None})
        elif url.path in ("/v1/chat/completions", "/v1/completions"):
            if self.allowed():
                self.complete(json.loads(raw), chat=url.path == "/v1/chat/completions")
        elif not url.path.startswith("/v1/") or self.allowed():
            self.send_json({"detail": "Not Found"}, 404)

    def sleep(self, level: int) -> None:
        say(f"sleep is asked for, level {level}")
        if self.engine.plan["sleep"] == "hang":
            threading.Event().wait()
        if self.engine.plan["sleep"] == "error":
            self.send_json({"detail": "the sleep failed"}, 500)
            return
        self.engine.asleep_level = level
        self.engine.weights = self.engine.weights and level < 2  # until it is started anew
        self.send_json({"status": "sleeping", "level": level})

    def complete(self, body: dict, *, chat: bool) -> None:
        engine = self.engine
        if body.get("model") != engine.served:
            message = f"The model `{body.get('model')}` does not exist. Valid aliases: {engine.served}."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            self.send_json({"error": error}, 404)
            return
        with engine.lock:
            engine.running += 1
            engine.prompted += PROMPT_TOKENS
        try:
            if engine.plan["chat"] == "hang":
                threading.Event().wait()
            if engine.plan["chat"] == "error":
                error = {"message": "EngineCore died", "type": "InternalServerError", "code": 500}
                self.send_json({"error": error}, 500)
            elif body.get("stream"):
                self.stream(body, chat=chat)
            else:
                words = list(engine.tokens(int(body.get("max_tokens") or len(WORDS))))
                self.send_json(self.answer("" if engine.plan["chat"] == "empty" else words, chat=chat))
        finally:
            with engine.lock:
                engine.running -= 1

    def answer(self, words: list[str] | str, *, chat: bool) -> dict:
        text = "".join(words)
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        end = "length" if len(words) < len(WORDS) else "stop"
        return self.frame(kind, [{"index": 0, "finish_reason": end, **choice}], len(words))

    def stream(self, body: dict, *, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        kind = "chat.completion.chunk" if chat else "text_completion"
        count = 0
        for word in self.engine.tokens(int(body.get("max_tokens") or len(WORDS))):
            count += 1
            piece = {"delta": {"content": word}} if chat else {"text": word}
            self.event(self.frame(kind, [{"index": 0, "finish_reason": None, **piece}], None))
        last = {"delta": {}} if chat else {"text": ""}
        self.event(self.frame(kind, [{"index": 0, "finish_reason": "stop", **last}], None))
        if (body.get("stream_options") or {}).get("include_usage"):
            self.event(self.frame(kind, [], count))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def frame(self, kind: str, choices: list[dict], tokens: int | None) -> dict:
        frame = {
            "id": "cmpl-fake",
            "object": kind,
            "created": int(time.time()),
            "model": self.engine.served,
            "choices": choices,
        }
        if tokens is not None:
            total = PROMPT_TOKENS + tokens
            frame["usage"] = {
                "prompt_tokens": PROMPT_TOKENS,
                "total_tokens": total,
                "completion_tokens": tokens,
            }
        return frame

    def allowed(self) -> bool:
        key = self.engine.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.send_json({"error": "Unauthorized"}, 401)
        return False

    def model_row(self) -> dict:
        return {
            "id": self.engine.served,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": self.engine.model,
            "parent": None,
            "max_model_len": 512,
        }

    def event(self, frame: dict) -> None:
        self.chunk(f"data: {json.dumps(frame)}\n\n".encode())

    def chunk(self, content: bytes) -> None:
        self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
        self.wfile.flush()

    def send_json(self, value: object, status: int = 200) -> None:
        self.send(json.dumps(value).encode(), status, "application/json")

    def send(self, content: bytes, status: int, kind: str = "") -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def meet(args: argparse.Namespace) -> None:
    """Wait until all stages are there; from then on the end of one is the end of all."""
    lines = []
    if args.node_rank == 0:
        with socket.create_server((args.master_addr, args.master_port)) as place:
            while len(lines) < args.nnodes - 1:
                line, _ = place.accept()
                say(f"stage {line.recv(8).decode()} of {args.nnodes} is here")
                line.sendall(b"ok")
                lines.append(line)
    else:
        while not lines:
            try:
                lines.append(socket.create_connection((args.master_addr, args.master_port), 1))
            except OSError:
                time.sleep(0.1)
        lines[0].settimeout(None)
        lines[0].sendall(str(args.node_rank).encode())
        assert lines[0].recv(8) == b"ok"
    for line in lines:
        threading.Thread(target=outlive, args=[line], daemon=True).start()


def outlive(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.recv(1)
    say("another stage is gone: EngineDeadError")
    os._exit(1)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main(argv: list[str]) -> int:
    """`vllm serve MODEL --served-model-name NAME --host H --port P ...`; unknown flags are an error, as
    they are for the real one."""
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    for flag in ("--tensor-parallel-size", "--gpu-memory-utilization", "--max-model-len", "--max-num-seqs"):
        parser.add_argument(flag)
    for flag in ("--pipeline-parallel-size", "--distributed-executor-backend", "--master-addr"):
        parser.add_argument(flag)
    for flag, usual in (("--nnodes", 1), ("--node-rank", 0), ("--master-port", 29501)):
        parser.add_argument(flag, type=int, default=usual)
    for flag in ("--enable-sleep-mode", "--headless"):
        parser.add_argument(flag, action="store_true")
    args = parser.parse_args(argv)
    engine = Engine(args.model, args.served_model_name)
    signal.signal(signal.SIGTERM, lambda *_: None if engine.plan["term"] == "ignore" else os._exit(0))
    engine.load()
    engine.leave_if_told()
    if args.nnodes > 1:
        meet(args)
    if args.headless:
        say("this stage has no API")
        threading.Event().wait()
    Handler.engine = engine
    server = Server((args.host, args.port), Handler)
    say(f"Starting vLLM API server 0 on http://{args.host}:{args.port}")
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
