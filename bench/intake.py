"""Heartbeats and API calls a second of one server: `python -m bench.intake [SECONDS]`.

Starts a server with an empty database and joins NODES nodes over the agent protocol. Then CLIENTS threads
send their heartbeats as fast as they are answered, and read the list of nodes and `/me` as an operator. One
JSON line comes out. BENCH_PROFILE=embedded (else) measures one process, which runs the loops, too;
BENCH_PROFILE=production all that `make run-production` starts: PostgreSQL, Redis, two processes of each
kind, nginx with TLS in front.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.processes import free_port

ROOT = Path(__file__).resolve().parents[1]
NODES = 20
CLIENTS = 4
READY_S = 300.0
STOP_S = 60.0
COMMANDS = {"embedded": ["up", "--no-demo"], "production": ["run-production", "--no-demo"]}
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


@dataclass(frozen=True)
class Place:
    """Where the server is; `certificate` is the one that it shows, None without TLS."""

    port: int
    certificate: Path | None

    def connect(self) -> http.client.HTTPConnection:
        if self.certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        trust = ssl.create_default_context(cafile=self.certificate)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=trust)


class Client:
    """One kept connection."""

    def __init__(self, place: Place, headers: dict[str, str]) -> None:
        self._line = place.connect()
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

    def __init__(self, place: Place, token: str, number: int) -> None:
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
        node_id = Client(place, contract).call("POST", "/agent/v1/join", join)["node_id"]
        self._client = Client(place, {**contract, "Authorization": f"Bearer {node_id}:{secret}"})
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


def start_server(folder: Path, profile: str) -> tuple[subprocess.Popen[str], Place, str]:
    """The server of a profile, where it is, and the operator's password that it printed."""
    data = folder / "data"
    place = Place(free_port(), data / "tls" / "server.crt" if profile == "production" else None)
    env = {**os.environ, "PORT": str(place.port), "HOST": "127.0.0.1", "DATA_DIR": str(data)}
    log = (folder / "log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "manage.py", *COMMANDS[profile]],
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
        if told and _answers(place):
            return process, place, told.group(1)
        time.sleep(0.2)
    process.terminate()
    process.wait(STOP_S)
    raise SystemExit(f"the server does not come up:\n{(folder / 'log').read_text()[-2000:]}")


def _answers(place: Place) -> bool:
    try:
        Client(place, {}).call("GET", "/readyz")
    except (OSError, SystemExit):
        return False
    return True


def main() -> None:
    secs = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    profile = os.environ.get("BENCH_PROFILE", "") or "embedded"
    if profile not in COMMANDS:
        raise SystemExit(f"BENCH_PROFILE is {profile}; there are {', '.join(COMMANDS)}")
    with tempfile.TemporaryDirectory(prefix="heteroflow-intake-") as name:
        Path(name).chmod(0o711)  # PostgreSQL's account passes through
        process, place, password = start_server(Path(name), profile)
        try:
            body = {"username": "admin", "password": password}
            access = Client(place, {}).call("POST", "/api/v1/auth/token", body)["access"]
            signed_in = {"Authorization": f"Bearer {access}"}
            operator = Client(place, signed_in)
            nodes = [
                Node(place, operator.call("POST", "/api/v1/join-tokens", {})["token"], number)
                for number in range(NODES)
            ]
            for node in nodes:
                node.beat()
            beats = together([node.beat for node in nodes[:CLIENTS]], secs)
            readers = [Client(place, signed_in) for _ in range(CLIENTS)]
            lists = together([lambda c=c: c.call("GET", "/api/v1/nodes") for c in readers], secs)  # type: ignore[misc]
            alive = together([lambda c=c: c.call("GET", "/api/v1/me") for c in readers], secs)  # type: ignore[misc]
        finally:
            process.terminate()
            process.wait(STOP_S)
    names = ("per_s", "p50_ms", "p99_ms")
    found = {
        "heartbeats": dict(zip(names, (round(v, 2) for v in beats), strict=True)),
        "list_of_nodes": dict(zip(names, (round(v, 2) for v in lists), strict=True)),
        "me": dict(zip(names, (round(v, 2) for v in alive), strict=True)),
        "profile": profile,
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
