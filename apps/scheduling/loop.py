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


@tick("scheduling.place", every="SCHEDULING_PERIOD_S", queue="scheduling")
def place(lease: Held, now: datetime) -> dict[str, Any]:
    """Place what waits, highest priority first, as much as fits into one run; the rest is next.

    Each portion is decided on what the former ones left and committed before the next, so that a
    crash loses no placement and leaves none half-made (SCHED-12).
    """
    with hints.gathered(settings.SCHEDULING_PERIOD_S), _no_collections():
        return _place(lease, now)


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


def _place(lease: Held, now: datetime) -> dict[str, Any]:
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
        for node in {item.node_public_id for item in plan.placements if item.task_id in moved}:
            hints.look(node)
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
    """Commit one portion; answers the row ids of the tasks that were placed."""
    units = services.units(placement_of(item) for item in plan.placements)
    return _commit_units(lease, units, now, pulse) if units else set()


def _commit_units(lease: Held, units: list[list[Placement]], now: datetime, pulse: _Pulse) -> set[int]:
    """As a whole, else half by half, a gang as one, so that one bad row costs one row."""
    placements = [item for unit in units for item in unit]
    try:
        return services.commit_placements(lease=lease, placements=placements, now=now)
    except LeaseLost:
        raise
    except Exception as error:
        _say_failed(error, units)
    if len(units) == 1:
        return set()
    half, moved = len(units) // 2, set()
    for part in (units[:half], units[half:]):
        pulse()
        moved |= _commit_units(lease, part, now, pulse)
    return moved


def _say_failed(error: Exception, units: list[list[Placement]]) -> None:
    ids = [item.task_id for item in units[0]]
    if len(units) > 1:
        log.warning("a slice of %s placements failed: %r; trying it half by half", len(units), error)
    elif isinstance(error, PlacementClash):
        log.info("task rows %s: their place was taken meanwhile; next run", ids)
    else:
        log.error("task rows %s could not be placed; the others go on", ids, exc_info=error)


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
