"""A whole tick of the real loop on PostgreSQL: read, decide, commit, with its phases told apart.

Besides the time that passed it tells processor time, the loop's own and PostgreSQL's together: that hardly
depends on what else runs on the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.db import connection

from agent.contract.states import Desired
from apps.core.clock import utc_now
from apps.core.ticks import run_tick
from apps.scheduling import loop
from apps.scheduling.policy.decide import Planner
from apps.workloads import services
from apps.workloads.models import Task
from bench.scheduler.fleet import World, wind_back

NAME = "scheduling.place"
PHASES = ("read", "decide", "commit", "reasons")


class Clock:
    """Seconds that passed and processor seconds by phase; `watch` wraps what the loop calls."""

    def __init__(self) -> None:
        self.passed: dict[str, float] = {}
        self.used: dict[str, float] = {}
        self._backends: list[Path] = []

    def begin(self) -> None:
        """Forget what was measured, and note PostgreSQL's processes that serve us."""
        self.passed, self.used = {}, {}
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'")
            self._backends = [Path(f"/proc/{pid}/schedstat") for (pid,) in cursor.fetchall()]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what passes inside for this phase."""
        began, used = time.perf_counter(), self._used()
        try:
            yield
        finally:
            self.used[name] = self.used.get(name, 0.0) + self._used() - used
            self.passed[name] = self.passed.get(name, 0.0) + time.perf_counter() - began

    def watch(self, owner: Any, name: str, phase: str) -> None:
        """Count every call of this function for the phase from now on."""
        real = getattr(owner, name)

        def timed(*args: Any, **more: Any) -> Any:
            with self.phase(phase):
                return real(*args, **more)

        setattr(owner, name, timed)

    def _used(self) -> float:
        theirs = sum(int(path.read_text().split()[0]) for path in self._backends) / 1e9
        return time.thread_time() + theirs


def watched() -> Clock:
    """A clock on the loop of this process."""
    clock = Clock()
    clock.watch(loop, "load_snapshot", "read")
    clock.watch(Planner, "__init__", "decide")
    clock.watch(Planner, "portion", "decide")
    clock.watch(services, "commit_placements", "commit")
    clock.watch(services, "note_refusals", "reasons")
    return clock


Run = dict[str, Any]


def measure(world: World, clock: Clock, rounds: int) -> dict[str, Any]:
    """Medians over rounds, in ms, of: a tick that places what waits; the next one, in which all that still
    waits fits nowhere and has been told so; an idle one."""
    full, stuck, idle = [], [], []
    for _ in range(rounds):
        wind_back(world, utc_now())
        full.append(run(clock))
        stuck.append(run(clock))
        mine = Task.objects.filter(pk__in=world.tasks)
        mine.update(desired=Desired.STOP)
        idle.append(run(clock))
        mine.update(desired=Desired.RUN)
    return {
        "nodes": world.nodes,
        "waiting": world.waiting,
        "placed": full[0]["detail"]["placed"],
        "refused": full[0]["detail"]["refused"],
        "tick": medians(full),
        "nothing_fits": medians(stuck),
        "idle": medians(idle),
    }


def run(clock: Clock) -> Run:
    """One tick, as a worker runs it."""
    clock.begin()
    with clock.phase("tick"):
        detail = run_tick(NAME)
    if detail is None:
        raise SystemExit("the tick failed; see the log above")
    if detail.get("left"):
        raise SystemExit(
            f"the tick left {detail['left']} tasks to the next one: SCHEDULING_BUDGET_S is too small"
        )
    return {"passed": clock.passed, "used": clock.used, "detail": detail}


def medians(runs: list[Run]) -> dict[str, Any]:
    """By phase; `ms` passed, `cpu_ms` processor time; `rest` is lease and last-run row."""

    def each(kind: str, name: str) -> list[float]:
        if name == "rest":
            return [2 * one[kind]["tick"] - sum(one[kind].values()) for one in runs]
        return [one[kind].get(name, 0.0) for one in runs]

    def median(kind: str, name: str) -> float:
        return round(statistics.median(each(kind, name)) * 1000, 1)

    return {
        "ms": median("passed", "tick"),
        "least_ms": round(min(each("passed", "tick")) * 1000, 1),
        "most_ms": round(max(each("passed", "tick")) * 1000, 1),
        "cpu_ms": median("used", "tick"),
        "phases_ms": {name: median("passed", name) for name in (*PHASES, "rest")},
        "phases_cpu_ms": {name: median("used", name) for name in (*PHASES, "rest")},
    }
