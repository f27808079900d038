"""`make bench-gateway`: gateways before two stand-in engines, interleaved, medians of several rounds.

BENCH_ONLY=direct,nginx,ours chooses; BENCH_LOADS=plain:50,stream:50,slow:450 (kind:connections),
BENCH_ROUNDS, BENCH_SECS, BENCH_PIN=0 (else the gateway has one core, load and engines another). Prints
tables, what has to be (ratios.py) and, last, one line of JSON with both. On a shared machine compare within
one run only, and trust CPU s/1k (processor seconds of the gateway per 1,000 replies) before req/s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench.ours import KEY, MODEL
from bench.peers import PEERS, Place
from bench.processes import Crowd, cpu_s, free_port, memory_mb
from bench.ratios import compare

HERE = Path(__file__).resolve().parent
PATH = "/v1/chat/completions"
READY_S = 90.0
LOADS = "plain:1,plain:50,plain:450,stream:50,stream:450,hidden:50,slow:450"
LEAST_S = {"slow": 2.7}
"""A shorter window holds one such stream of each caller, and so nothing but all of them beginning at once."""
EVENTS = 66  # 64 chunks, the usage, [DONE]
TALK = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Say something about scheduling graphics cards in a shared cluster, please."},
]
PLAIN: dict[str, Any] = {"model": MODEL, "messages": TALK, "temperature": 0.7, "max_tokens": 64}
STREAM = {**PLAIN, "stream": True, "stream_options": {"include_usage": True}}
PICTURE = "data:image/png;base64," + "iVBORw0KGgoAAAAN" * 655_360
BODIES = {
    "plain": PLAIN,
    "stream": STREAM,
    "hidden": {**PLAIN, "stream": True},  # usage not asked for: 65 events must come back
    "slow": {**STREAM, "seed": 20},  # 20 ms between tokens
    "wait": {**PLAIN, "seed": 200},  # a whole answer after 200 ms
    "big": {
        **PLAIN,
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]}],
    },
}


class Run:
    """One run: what stands where, and the windows measured."""

    def __init__(self, folder: Path, crowd: Crowd, pin: bool) -> None:
        self.folder, self.crowd = folder, crowd
        self.cores = (0, 1) if pin else (None, None)
        self.live: dict[str, tuple[int, int]] = {}  # name -> port, session
        self.windows: dict[tuple[str, str], list[dict[str, float]]] = {}

    def build(self) -> None:
        for name in ("mock", "load"):
            subprocess.run(["cc", "-O2", "-o", str(self.folder / name), str(HERE / f"{name}.c")], check=True)
        for kind, body in BODIES.items():
            (self.folder / f"{kind}.json").write_text(json.dumps(body, separators=(",", ":")))

    def start(self, names: list[str]) -> None:
        """Engines, then each gateway; one that does not come up is left out and said."""
        ports = (free_port(), free_port())
        mocks = [
            self.crowd.start([str(self.folder / "mock"), str(port)], cwd=self.folder, core=self.cores[1])
            for port in ports
        ]
        for name in names:
            if name == "direct":
                self.live[name] = (ports[0], mocks[0].pid)
                continue
            folder = self.folder / name
            folder.mkdir()
            place = Place(folder, free_port(), free_port(), ports, KEY)
            start = PEERS[name](place)
            if start is None:
                continue
            for file, text in start.files.items():
                (folder / file).write_text(text)
            process = self.crowd.start(
                start.command, cwd=folder, env={**os.environ, **start.env}, core=self.cores[0]
            )
            if self._comes_up(name, place.port, process):
                self.live[name] = (place.port, process.pid)

    def _comes_up(self, name: str, port: int, process: subprocess.Popen[bytes]) -> bool:
        give_up_at = time.monotonic() + READY_S
        while True:
            try:
                ask(port, PLAIN)
                break
            except OSError as error:
                if process.poll() is not None or time.monotonic() > give_up_at:
                    print(f"{name} does not come up: {error}", file=sys.stderr)
                    return False
                time.sleep(0.25)
        got = ask(port, STREAM).count(b"data:")
        if got != EVENTS:
            print(f"{name}: a stream has {got} events, not {EVENTS}", file=sys.stderr)
        if name == "ours":
            hidden = ask(port, BODIES["hidden"])
            names_us = hidden.count(b'"model":"%b"' % MODEL.encode()) == EVENTS - 2  # all but [DONE]
            if hidden.count(b"data:") != EVENTS - 1 or b"mock-upstream" in hidden or not names_us:
                raise SystemExit("ours: usage or the engine's name is not hidden; nothing is measured")
        self._window(port, "plain", 50, 1.0)  # warm
        return True

    def measure(self, loads: list[str], rounds: int, secs: float) -> None:
        for _ in range(rounds):
            for load in loads:
                kind, _, connections = load.partition(":")
                for name, (port, session) in self.live.items():
                    before = cpu_s(session)
                    window = self._window(port, kind, int(connections), max(secs, LEAST_S.get(kind, 0)))
                    spent = cpu_s(session) - before
                    window["cpu_per_1k"] = spent / max(window["ok"], 1) * 1000
                    window["memory_mb"] = memory_mb(session)
                    self.windows.setdefault((load, name), []).append(window)
                    time.sleep(0.3)

    def _window(self, port: int, kind: str, connections: int, secs: float) -> dict[str, float]:
        command = [str(self.folder / "load"), str(port), PATH, str(connections), str(secs)]
        command += [str(self.folder / f"{kind}.json"), KEY]
        if self.cores[1] is not None:
            command = ["taskset", "-c", str(self.cores[1]), *command]
        done = subprocess.run(command, capture_output=True, text=True, timeout=secs * 5 + 60, check=True)
        return dict(json.loads(done.stdout))


def ask(port: int, body: dict[str, Any]) -> bytes:
    """One call's answer. Raises OSError."""
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{PATH}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


COLUMNS = {
    "req/s": "rps",
    "p50 ms": "p50",
    "p99 ms": "p99",
    "first byte p50 ms": "ttft50",
    "CPU s/1k": "cpu_per_1k",
    "MB": "memory_mb",
}
OF_ALL = ("rps", "memory_mb")


Row = dict[str, float | None]


def medians(run: Run) -> dict[str, dict[str, Row]]:
    """By load and name; `failed` is a sum: replies that did not count, and lost connections. Times and
    processor time are of windows with replies, None where no window had any: that is no zero."""
    found: dict[str, dict[str, Row]] = {}
    for (load, name), windows in run.windows.items():
        row: Row = {}
        for key in COLUMNS.values():
            some = windows if key in OF_ALL else [w for w in windows if w["ok"]]
            row[key] = round(statistics.median(w[key] for w in some), 4) if some else None
        row["failed"] = sum(w["bad"] + w["err"] for w in windows)
        found.setdefault(load, {})[name] = row
    return found


def show(found: dict[str, dict[str, Row]]) -> None:
    for load, rows in found.items():
        print(f"\n{load}\n\n| gateway | {' | '.join(COLUMNS)} | failed |\n|{'---|' * (len(COLUMNS) + 2)}")
        for name, row in rows.items():
            cells = [cell(key, row[key]) for key in COLUMNS.values()]
            print(f"| {name} | {' | '.join(cells)} | {row['failed']:.0f} |")


def judge(ratios: dict[str, dict[str, Any]]) -> None:
    """The ratios as a table."""
    print("\nours\n\n| what | figure | has to be | |\n|---|---|---|---|")
    for name, row in ratios.items():
        bound = f"{'>=' if 'req/s' in name else '<='} {row['bound']:g}"
        figure = "no reply" if row["figure"] is None else f"{row['figure']:,.2f}"
        verdict = {True: "kept", False: "**not kept**", None: ""}[row["kept"]]
        print(f"| {name} | {figure} | {bound} | {verdict} |")


def cell(key: str, value: float | None) -> str:
    if value is None:
        return "no reply"
    return f"{value:,.0f}" if key in OF_ALL else f"{value:.3f}"


def main() -> None:
    env = os.environ.get
    names = env("BENCH_ONLY", "") or "direct,nginx,ours,vllm-router,sglang-router,litellm"
    loads = env("BENCH_LOADS", "") or LOADS
    rounds, secs = int(env("BENCH_ROUNDS", "") or 3), float(env("BENCH_SECS", "") or 3)
    chosen = names.split(",")
    if unknown := set(chosen) - {"direct", *PEERS}:
        raise SystemExit(f"BENCH_ONLY names {sorted(unknown)}; there are direct, {', '.join(PEERS)}")
    crowd = Crowd(verbose=bool(env("BENCH_VERBOSE")))
    with tempfile.TemporaryDirectory(prefix="heteroflow-bench-") as folder:
        Path(folder).chmod(0o755)  # nginx's workers may run as another user
        run = Run(Path(folder), crowd, pin=env("BENCH_PIN") != "0" and (os.cpu_count() or 1) > 1)
        try:
            run.build()
            run.start(chosen)
            run.measure(loads.split(","), rounds, secs)
        finally:
            crowd.end()
    found = medians(run)
    print(f"rounds={rounds} secs={secs} load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    show(found)
    ratios = compare(run.windows)
    judge(ratios)
    print(json.dumps({"ratios": ratios, "loads": found}))


if __name__ == "__main__":
    main()
