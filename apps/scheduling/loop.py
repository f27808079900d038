"""The scheduling loop: snapshot, decide, commit in slices, tell (SCHED-01).

Owns the order of the phases and what happens when a slice clashes. Decides nothing itself
(`policy/`), writes nothing itself (workloads.services).
"""

import gc
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from apps.core import hints
from apps.core.leases import Held, LeaseLost
from apps.core.ticks import tick
from apps.scheduling.placements import placement_of, rooms_of
from apps.scheduling.policy.decide import Planner
from apps.scheduling.policy.plan import Plan
from apps.scheduling.selectors import load_snapshot
from apps.workloads import services
from apps.workloads.services import Placement, PlacementClash

log = logging.getLogger("heteroflow.scheduling")


class _Pulse:
    """Keeps the lease alive while the run works, without a statement at every step."""

    def __init__(self, lease: Held) -> None:
        self._lease = lease
        self._renewed = time.monotonic()

    def __call__(self) -> None:
        """Renew where a third of the term has passed. Raises LeaseLost."""
        if time.monotonic() - self._renewed >= settings.TICK_LEASE_TTL_S / 3:
            self._lease.renew(settings.TICK_LEASE_TTL_S)
            self._renewed = time.monotonic()


class _News:
    """Nodes that got something and shall ask now. They are told at the end of a run, in a long one once a
    period: told slice by slice the same nodes would be told several times, and the thread that tells them
    takes the processor from the run."""

    def __init__(self) -> None:
        self._nodes: set[str] = set()
        self._told_at = time.monotonic()

    def add(self, nodes: set[str]) -> None:
        """These, too."""
        self._nodes |= nodes
        if time.monotonic() - self._told_at >= settings.SCHEDULING_PERIOD_S:
            self.tell()

    def tell(self) -> None:
        """Tell those that were not told."""
        for node in sorted(self._nodes):
            hints.look(node)
        self._nodes.clear()
        self._told_at = time.monotonic()


@tick("scheduling.place", every="SCHEDULING_PERIOD_S", queue="scheduling")
def place(lease: Held, now: datetime) -> dict[str, Any]:
    """Place what waits, highest priority first, as much as fits into one run; the rest is next.

    Each portion is decided on what the former ones left and committed before the next, so that a
    crash loses no placement and leaves none half-made (SCHED-12).
    """
    news = _News()
    with _no_collections():
        try:
            return _place(lease, now, news)
        finally:
            news.tell()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Tens of thousands of small values are made here and none of them in cycles: looking for those again and
    again would take a fifth of the run."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _place(lease: Held, now: datetime, news: _News) -> dict[str, Any]:
    snapshot = load_snapshot(now)
    if snapshot is None:
        return {"waiting": 0}
    started, pulse = time.monotonic(), _Pulse(lease)
    planner = Planner(snapshot, breathe=pulse, fatal=(LeaseLost, DatabaseError))
    placed = clashed = refused = made_room = 0
    while (plan := planner.portion(settings.COMMIT_SLICE, now)) is not None:
        for task_id, error in plan.broken.items():
            log.error("task row %s can not be judged; the others go on", task_id, exc_info=error)
        pulse()
        moved = _commit(lease, plan, now, pulse)
        news.add({item.node_public_id for item in plan.placements if item.task_id in moved})
        made_room += _make_room(lease, plan, now, pulse)
        _note_refusals(lease, plan, now)
        placed += len(moved)
        clashed += len(plan.placements) - len(moved)
        refused += len(plan.refusals)
        if time.monotonic() - started > settings.SCHEDULING_BUDGET_S:
            hints.kick("scheduling.place")
            break
        pulse()
    return {
        "waiting": len(snapshot.tasks),
        "placed": placed,
        "refused": refused,
        "clashed": clashed,
        "made_room": made_room,
        "left": planner.left,
    }


def _commit(lease: Held, plan: Plan, now: datetime, pulse: _Pulse) -> set[int]:
    """Commit one portion: as a whole, else item by item, a gang as one, so that one bad row costs one row."""
    if not plan.placements:
        return set()
    placements = [placement_of(item) for item in plan.placements]
    try:
        moved = services.commit_placements(lease=lease, placements=placements, now=now)
    except LeaseLost:
        raise
    except Exception as error:
        if not isinstance(error, PlacementClash):
            log.exception("a slice of %s placements failed; trying them one by one", len(placements))
        moved = _commit_each(lease, placements, now, pulse)
    return moved


def _commit_each(lease: Held, placements: list[Placement], now: datetime, pulse: _Pulse) -> set[int]:
    moved: set[int] = set()
    for unit in services.units(placements):
        pulse()
        ids = [item.task_id for item in unit]
        try:
            moved |= services.commit_placements(lease=lease, placements=unit, now=now)
        except LeaseLost:
            raise
        except PlacementClash:
            log.info("task rows %s: their place was taken meanwhile; next run", ids)
        except Exception:
            log.exception("task rows %s could not be placed; the others go on", ids)
    return moved


def _make_room(lease: Held, plan: Plan, now: datetime, pulse: _Pulse) -> int:
    """Commit the preemptions of one portion, each by itself, a gang's as one; answers for how many tasks."""
    done = 0
    for wanted in rooms_of(plan.preemptions):
        pulse()
        try:
            done += len(wanted) * services.make_room(lease=lease, wanted=wanted, now=now)
        except LeaseLost:
            raise
        except Exception:
            ids = [one.task_id for one in wanted]
            log.exception("no room could be made for task rows %s; the others go on", ids)
    return done


def _note_refusals(lease: Held, plan: Plan, now: datetime) -> None:
    try:
        services.note_refusals(lease=lease, refusals=plan.refusals, now=now)
    except LeaseLost:
        raise
    except Exception:  # reasons are for people; placing goes on without them
        log.exception("why %s tasks wait could not be noted", len(plan.refusals))
