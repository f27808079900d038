"""Heartbeats and API calls a second of one embedded server: `python -m bench.intake [SECONDS]`.

Starts a server with an empty database and joins NODES nodes over the agent protocol. Then CLIENTS threads
send their heartbeats as fast as they are answered, and read the list of nodes and `/me` as an operator. One
JSON line comes out. The one process that is measured runs the loops, too.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
NODES = 20
CLIENTS = 4
READY_S = 60.0
CARDS = [
    {
        "uuid": f"GPU-{number}",
        "index": number,
        "vendor": "nvidia",
        "model": "NVIDIA A100",
        "vram_total_mb": 81920,
        "vram_used_mb": 1024,
    }
    for number in range(8)
]


class Client:
    """One kept connection."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self._line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"Content-Type": "application/json", **headers}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self._line.request(method, path, None if body is None else json.dumps(body), self._headers)
        answer = self._line.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]!r}")
        return json.loads(text) if text else None


class Node:
    """A node that was joined, and its heartbeat."""

    def __init__(self, port: int, token: str, number: int) -> None:
        secret = hashlib.sha256(f"bench-{number}".encode()).hexdigest()
        join = {
            "type": "join",
            "token": token,
            "secret_sha256": hashlib.sha256(secret.encode()).hexdigest(),
            "machine_id": f"machine-{number}",
            "hostname": f"node-{number}",
            "agent_version": "bench",
        }
        contract = {"X-HeteroFlow-Contract": "1"}
        node_id = Client(port, contract).call("POST", "/agent/v1/join", join)["node_id"]
        self._client = Client(port, {**contract, "Authorization": f"Bearer {node_id}:{secret}"})
        self._number, self._sequence, self._hash = number, 0, ""

    def beat(self) -> None:
        self._sequence += 1
        answer = self._client.call(
            "POST",
            "/agent/v1/heartbeat",
            {
                "type": "heartbeat",
                "incarnation": "run-1",
                "started_at": 1.0,
                "sequence": self._sequence,
                "desired_hash": self._hash,
                "sent_at": time.time(),
                "machine_id": f"machine-{self._number}",
                "runtime": "docker",
                "host": {"cpu_count": 64, "memory_total_mb": 515_000},
                "dial": {"kind": "direct", "host": "127.0.0.1"},
                "cards": CARDS,
                "running": [],
            },
        )
        self._hash = answer.get("hash", answer.get("desired_hash", self._hash))


def together(acts: list[Callable[[], Any]], secs: float) -> tuple[float, float, float]:
    """Each act again and again in its own thread: calls a second, p50 and p99 in ms."""
    times: list[float] = []
    stop_at = time.monotonic() + secs

    def go_on(act: Callable[[], Any]) -> None:
        while time.monotonic() < stop_at:
            begun = time.perf_counter()
            act()
            times.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=go_on, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cut = statistics.quantiles(times, n=100)
    return len(times) / secs, cut[49] * 1000, cut[98] * 1000


def start_server(folder: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """`manage.py up --no-demo`, and the operator's password that it printed."""
    env = {**os.environ, "PORT": str(port), "HOST": "127.0.0.1", "DATA_DIR": str(folder / "data")}
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "manage.py", "up", "--no-demo"],
        cwd=ROOT,
        env=env,
        stdout=log,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    give_up_at = time.monotonic() + READY_S
    while time.monotonic() < give_up_at and process.poll() is None:
        told = re.search(r"user admin +password (\S+)", (folder / "log").read_text())
        if told and _answers(port):
            return process, told.group(1)
        time.sleep(0.2)
    process.terminate()
    raise SystemExit(f"the server does not come up:\n{(folder / 'log').read_text()[-2000:]}")


def _answers(port: int) -> bool:
    try:
        Client(port, {}).call("GET", "/readyz")
    except (OSError, SystemExit):
        return False
    return True


def main() -> None:
    secs = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="heteroflow-intake-") as name:
        process, password = start_server(Path(name), port)
        try:
            body = {"username": "admin", "password": password}
            access = Client(port, {}).call("POST", "/api/v1/auth/token", body)["access"]
            signed_in = {"Authorization": f"Bearer {access}"}
            operator = Client(port, signed_in)
            nodes = [
                Node(port, operator.call("POST", "/api/v1/join-tokens", {})["token"], number)
                for number in range(NODES)
            ]
            for node in nodes:
                node.beat()
            beats = together([node.beat for node in nodes[:CLIENTS]], secs)
            readers = [Client(port, signed_in) for _ in range(CLIENTS)]
            lists = together([lambda c=c: c.call("GET", "/api/v1/nodes") for c in readers], secs)  # type: ignore[misc]
            alive = together([lambda c=c: c.call("GET", "/api/v1/me") for c in readers], secs)  # type: ignore[misc]
        finally:
            process.terminate()
            process.wait(30)
    names = ("per_s", "p50_ms", "p99_ms")
    found = {
        "heartbeats": dict(zip(names, (round(v, 2) for v in beats), strict=True)),
        "list_of_nodes": dict(zip(names, (round(v, 2) for v in lists), strict=True)),
        "me": dict(zip(names, (round(v, 2) for v in alive), strict=True)),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
