"""Ticks: loops that run by a period and by a kick, one holder at a time.

`@tick("scheduling.place", every="SCHEDULING_PERIOD_S")` registers a loop body
`run(lease: Held, now: datetime) -> dict` as a Celery task of the same name. The wrapper owns the
lease, the last-run row and the rule that one broken run never ends the loop (RECOV-05).
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import shared_task
from django.conf import settings
from django.db import DatabaseError, close_old_connections
from django.db.models import F

from apps.core import leases
from apps.core.clock import utc_now
from apps.core.models import TickRun

log = logging.getLogger("heteroflow.ticks")

Body = Callable[[leases.Held, datetime], dict[str, Any]]


@dataclass(frozen=True)
class Tick:
    """A registered loop. `every` names the setting that holds its period in seconds."""

    name: str
    every: str
    queue: str
    body: Body

    @property
    def period_s(self) -> float:
        return float(getattr(settings, self.every))

    @property
    def late_after_s(self) -> float:
        """A loop whose last run ended longer ago is late: for readiness, alerts and Prometheus alike."""
        return float(settings.LOOP_LATE_PERIODS * self.period_s + settings.LOOP_LATE_SLACK_S)

    def is_late(self, waiting_since: datetime, now: datetime) -> bool:
        """`waiting_since`: when its last run ended, or from when on the first one is awaited."""
        return (now - waiting_since).total_seconds() > self.late_after_s


REGISTRY: dict[str, Tick] = {}


def holder_name() -> str:
    """This thread of this process on this host, unique per run."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}:{uuid.uuid4().hex[:8]}"


def tick(name: str, *, every: str, queue: str = "ticks") -> Callable[[Body], Body]:
    """Register a loop body under a name; the Celery task `name` runs it."""

    def register(body: Body) -> Body:
        REGISTRY[name] = Tick(name, every, queue, body)

        def entry() -> None:
            run_tick(name)

        shared_task(name=name, ignore_result=True)(entry)
        return body

    return register


def run_tick(name: str, now: datetime | None = None) -> dict[str, Any] | None:
    """Run a loop once if nobody else is running it. None when another holds the lease or it failed;
    the failure is in the TickRun row and the log."""
    loop = REGISTRY[name]
    close_old_connections()
    try:
        lease = leases.acquire(name, holder_name(), settings.TICK_LEASE_TTL_S)
        return None if lease is None else _run_held(loop, lease, now or utc_now())
    except DatabaseError as error:  # away, or full: the next period tries again (RECOV-05)
        log.error("tick %s: the database did not answer: %s", name, error)
        return None
    finally:
        close_old_connections()


def _run_held(loop: Tick, lease: leases.Held, started_at: datetime) -> dict[str, Any] | None:
    started = time.monotonic()
    try:
        detail = loop.body(lease, started_at)
    except leases.LeaseLost:
        log.warning("tick %s: overtaken by another holder, nothing written", loop.name)
        return None
    except Exception as error:
        log.exception("tick %s failed", loop.name)
        _note(loop.name, started_at, started, "failed", {"error": type(error).__name__})
        return None
    else:
        _note(loop.name, started_at, started, "done", detail)
        return detail
    finally:
        lease.release()


def _note(name: str, started_at: datetime, started: float, outcome: str, detail: dict[str, Any]) -> None:
    values = {
        "started_at": started_at,
        "finished_at": utc_now(),
        "duration_ms": int((time.monotonic() - started) * 1000),
        "outcome": outcome,
        "detail": detail,
    }
    failures = F("failures_in_a_row") + 1 if outcome == "failed" else 0
    if not TickRun.objects.filter(name=name).update(failures_in_a_row=failures, **values):
        TickRun.objects.create(name=name, failures_in_a_row=int(outcome == "failed"), **values)


def beat_schedule() -> dict[str, dict[str, Any]]:
    """Celery's schedule for all registered ticks; a tick that waited a whole period is dropped."""
    return {
        loop.name: {
            "task": loop.name,
            "schedule": loop.period_s,
            "options": {"queue": loop.queue, "expires": max(loop.period_s, 1.0)},
        }
        for loop in REGISTRY.values()
    }
