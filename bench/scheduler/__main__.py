"""`make bench-scheduler`: the scheduler's own speed. Prints tables and, last, one JSON line.

BENCH_ROUNDS (5) ticks of each kind; BENCH_PARTS=decide,tick,growth chooses; BENCH_GROWTH=100,200,... nodes;
BENCH_PICTURE names the SVG that growth is drawn into. Each figure is a median. On a busy machine trust
processor time ("cpu", the loop's and PostgreSQL's together) before the time that passed.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.scheduler.picture import draw
from bench.scheduler.stores import ROOT, running_stores

PARTS = ("decide", "tick", "growth")
TICK = (500, 2_000)  # nodes, waiting tasks
GROWTH = "100,200,500,1000,2000,5000"
WAITING_A_NODE = 2
BUDGET_S = 600.0  # one tick does everything, however busy the machine is

Found = dict[str, Any]


def decide_alone() -> Found:
    """In a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "bench.scheduler.decide"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ticks(sizes: list[tuple[int, int]], rounds: int) -> list[Found]:
    """A whole tick on PostgreSQL for each (nodes, waiting tasks)."""
    os.environ.setdefault("SCHEDULING_BUDGET_S", str(BUDGET_S))
    found = []
    with running_stores():
        from django.core.management import call_command

        from apps.core.clock import utc_now
        from bench.scheduler import fleet, tick

        logging.getLogger("heteroflow.hints").setLevel(logging.ERROR)  # nobody listens to them here
        clock = tick.watched()
        for nodes, waiting in sizes:
            print(f"{nodes} nodes, {waiting} waiting tasks ...", file=sys.stderr, flush=True)
            call_command("flush", interactive=False, verbosity=0)
            found.append(tick.measure(fleet.build(nodes, waiting, utc_now()), clock, rounds))
    return found


def show_ticks(title: str, rows: list[Found]) -> None:
    names = ("read", "decide", "commit", "reasons", "rest")
    print(f"\n{title}: ms, processor ms in brackets\n")
    print(f"| nodes x 8 | waiting | placed | whole tick | {' | '.join(names)} | nothing fits | idle |")
    print(f"|{'---|' * (len(names) + 6)}")
    for row in rows:
        tick = row["tick"]
        phases = [_cell(tick["phases_ms"][name], tick["phases_cpu_ms"][name]) for name in names]
        kinds = [_cell(row[kind]["ms"], row[kind]["cpu_ms"]) for kind in ("tick", "nothing_fits", "idle")]
        cells = [kinds[0], *phases, *kinds[1:]]
        print(f"| {row['nodes']:,} | {row['waiting']:,} | {row['placed']:,} | {' | '.join(cells)} |")


def _cell(passed: float, used: float) -> str:
    return f"{passed:,.0f} ({used:,.0f})"


def show_decide(found: Found) -> None:
    print("\nThe decision alone\n\n| what | figure |\n|---|---|")
    for name, value in found.items():
        print(f"| {name} | {f'{value:,}' if isinstance(value, int | float) else value} |")


def growth_picture(rows: list[Found]) -> str:
    """Processor time of a tick and its phases over the number of nodes."""
    lines = {"whole tick": [(row["nodes"], row["tick"]["cpu_ms"]) for row in rows]}
    for name in ("read", "decide", "commit"):
        lines[name] = [(row["nodes"], row["tick"]["phases_cpu_ms"][name]) for row in rows]
    lines["idle tick"] = [(row["nodes"], row["idle"]["cpu_ms"]) for row in rows]
    title = f"One tick, {WAITING_A_NODE} waiting tasks a node, 8 cards a node"
    return draw(title, "nodes", "processor time, ms", lines)


def main() -> None:
    env = os.environ.get
    chosen = (env("BENCH_PARTS", "") or ",".join(PARTS)).split(",")
    if unknown := set(chosen) - set(PARTS):
        raise SystemExit(f"BENCH_PARTS names {sorted(unknown)}; there are {', '.join(PARTS)}")
    rounds = int(env("BENCH_ROUNDS", "") or 5)
    picture = Path(env("BENCH_PICTURE", "") or ROOT / ".cache" / "bench" / "scheduler-growth.svg")
    found: Found = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "processors": os.cpu_count()}
    if "decide" in chosen:
        found["decide"] = decide_alone()
        show_decide(found["decide"])
    sizes = (
        [int(size) for size in (env("BENCH_GROWTH", "") or GROWTH).split(",")] if "growth" in chosen else []
    )
    wanted = [TICK] * ("tick" in chosen) + [(size, WAITING_A_NODE * size) for size in sizes]
    rows = ticks(wanted, rounds) if wanted else []
    if "tick" in chosen:
        found["tick"] = rows.pop(0)
        show_ticks("A whole tick on PostgreSQL", [found["tick"]])
    if rows:
        found["growth"] = rows
        show_ticks("Growth", rows)
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_text(growth_picture(rows))
        print(f"\n{picture}")
    found["load_average"] = round(os.getloadavg()[0], 1)
    print(f"\nmedians of {rounds}, load average {found['load_average']}, {found['processors']} processors")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
