"""The drain loop: empties nodes without taking a service away (LIFE-09).

Owns the order of the steps. A replica that serves gets a replacement on another node; once that is ready, or
the drain is cancelled, one of the two leaves (`policy/pairs.py`). Where it goes is the scheduler's own
decision; each write is one transaction of workloads. Nothing is begun without a place.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from agent.contract.codes import Code, Reason
from agent.contract.states import Desired, Phase, State
from apps.core.leases import Held, LeaseLost
from apps.core.ticks import tick
from apps.fleet.models import Duty, Node
from apps.fleet.services import note_duty
from apps.scheduling.placements import placement_of
from apps.scheduling.policy.decide import Planner
from apps.scheduling.policy.snapshot import TaskView
from apps.scheduling.selectors import load_snapshot_of
from apps.upkeep.policy.pairs import Choice, Side, judge
from apps.upkeep.policy.turns import Serving, in_turn
from apps.usage.cardtime import settle
from apps.workloads import services as work
from apps.workloads.models import Task
from apps.workloads.policy.moves import CLAIMABLE, RUNS_ON_NODE, SERVING
from apps.workloads.policy.rebuilding import GIVEN_UP
from apps.workloads.selectors import is_exchanged
from apps.workloads.services import Placement, PlacementClash

log = logging.getLogger("heteroflow.upkeep")


@dataclass
class _Run:
    """One run: the nodes being emptied by row id, and why tasks are still there, by node and task."""

    lease: Held
    now: datetime
    nodes: dict[int, Node]
    notes: dict[int, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def waits(self, task: Task, code: str, **params: Any) -> None:
        if task.node_id is not None:
            self.notes[task.node_id][task.public_id] = {"code": code, "params": params}

    def is_forced(self, task: Task) -> bool:
        node = self.nodes.get(task.node_id or 0)
        return bool(node and node.duty_force_at and node.duty_force_at <= self.now)

    def attempt(self, task: Task, act: Callable[[], bool]) -> int:
        """1 where `act` changed something. One task that can not be dealt with stops no other (RECOV-05)."""
        try:
            return int(act())
        except LeaseLost:
            raise
        except PlacementClash:
            log.info("task %s: its place was taken meanwhile; next run", task.public_id)
        except Exception:
            log.exception("task %s could not be taken off its node; the others go on", task.public_id)
        return 0


@tick("upkeep.drain", every="DRAIN_PERIOD_S")
def drain(lease: Held, now: datetime) -> dict[str, Any]:
    """One step for every pair and for every node that is being emptied; answers what was done. Pairs are
    settled whatever became of the drain that made them."""
    nodes = {node.pk: node for node in Node.objects.exclude(duty=Duty.SERVICE)}
    run = _Run(lease, now, nodes, {pk: {} for pk in nodes})
    done = {"nodes": len(nodes), "settled": _settle(run)}
    done["stopped"] = work.end_drained(lease=lease, now=now)
    done["removed"] = work.remove_retired(lease=lease, now=now, before=lambda claims: settle(claims, now=now))
    lease.renew(settings.TICK_LEASE_TTL_S)
    if nodes:
        done |= _empty(run)
        for pk, found in run.notes.items():
            if nodes[pk].duty_notes != found:
                note_duty(lease=lease, node_id=pk, notes=found)
        done["waiting"] = sum(map(len, run.notes.values()))
    return done


def _settle(run: _Run) -> int:
    """Choose one of each pair where it is time to."""
    settled = 0
    pairs = Task.objects.filter(replaces__isnull=False).select_related("group", "replaces__group")
    for new in pairs.order_by("pk"):
        old = new.replaces
        if old is None:
            continue
        choice = judge(
            _side(old, run.now),
            _side(new, run.now),
            emptying=old.node_id in run.nodes and old.state in RUNS_ON_NODE,
            forced=run.is_forced(old),
            retry_s=settings.DRAIN_RETRY_S,
        )
        if choice is not Choice.WAIT:
            keep_new = choice is Choice.KEEP_NEW
            settle = partial(
                work.settle_pair, lease=run.lease, old=old, new=new, keep_new=keep_new, now=run.now
            )
            settled += run.attempt(old, settle)
    return settled


def _side(task: Task, now: datetime) -> Side:
    spent = task.state == State.FAILED and task.reason_code in GIVEN_UP
    return Side(
        state=State(task.state),
        phase=Phase(task.phase),
        wanted=task.desired == Desired.RUN and task.group.deleted_at is None,
        spent_for_s=(now - task.state_since).total_seconds() if spent else None,
    )


def _empty(run: _Run) -> dict[str, int]:
    """Begin replacements for what serves, move what does not, and evict what a word forces off."""
    there = Task.objects.select_related("group").filter(
        node__in=run.nodes,
        state__in=SERVING,
        desired=Desired.RUN,
        replacement__isnull=True,
        group__deleted_at__isnull=True,
    )
    tasks = {task.pk: task for task in there.order_by("pk")}
    services = [task for task in tasks.values() if is_exchanged(task.group)]
    turn = [task for task in services if task.state in CLAIMABLE]
    turn += _whose_turn(run, [task for task in services if task.state == State.RUNNING])
    begun, moved, nowhere = _place(run, turn) if turn else (0, 0, [])
    unplaced = _unplace_sleepers(run)
    forced = [*nowhere, *(task for task in tasks.values() if not is_exchanged(task.group))]
    evict = partial(work.evict_task, lease=run.lease, now=run.now)
    evicted = sum(run.attempt(task, partial(evict, task=task)) for task in forced if run.is_forced(task))
    return {"begun": begun, "moved": moved, "evicted": evicted, "unplaced": unplaced}


def _unplace_sleepers(run: _Run) -> int:
    """What sleeps there sleeps on without a place; what is falling asleep there is waited for."""
    asleep = Task.objects.filter(node__in=run.nodes, state=State.SLEEPING, desired=Desired.SLEEP)
    unplace = partial(work.unplace_sleeper, lease=run.lease, now=run.now)
    return sum(run.attempt(task, partial(unplace, task=task)) for task in asleep.order_by("pk"))


def _whose_turn(run: _Run, serving: list[Task]) -> list[Task]:
    """Those to replace now, in order; for the others the note says why they wait."""
    by_id = {task.pk: task for task in serving if task.replaces_id is None}
    busy: dict[int, int] = {}
    siblings = Task.objects.filter(group__in={task.group_id for task in serving}, desired=Desired.RUN)
    for group_id, state, phase, replaces in siblings.values_list("group_id", "state", "phase", "replaces"):
        starts = state in CLAIMABLE or (state == State.RUNNING and phase != Phase.READY)
        busy[group_id] = busy.get(group_id, 0) + int(starts or replaces is not None)
    turn, later = in_turn(
        (
            Serving(
                task_id=task.pk,
                group_id=task.group_id,
                tenant_id=task.group.tenant_id,
                priority=task.group.priority,
                since=run.nodes[task.node_id or 0].duty_since or run.now,
                forced=run.is_forced(task),
            )
            for task in by_id.values()
        ),
        busy,
    )
    for one in later:
        run.waits(by_id[one.task_id], "drain_in_turn")
    return [by_id[one.task_id] for one in turn]


def _place(run: _Run, turn: list[Task]) -> tuple[int, int, list[Task]]:
    """(replacements begun, tasks moved, tasks that fit nowhere). At most DRAIN_AT_ONCE replacements start
    at once; those that an operator forces are not counted."""
    snapshot = load_snapshot_of([task.pk for task in turn], run.now)
    views = {view.id: view for view in snapshot.tasks}
    planner = Planner(snapshot, fatal=(LeaseLost, DatabaseError))
    starting = Task.objects.filter(replaces__isnull=False, state=State.SCHEDULING).count()
    begin = partial(work.begin_replacement, lease=run.lease, now=run.now)
    move = partial(work.move_task, lease=run.lease, now=run.now)
    begun = moved = 0
    nowhere: list[Task] = []
    for task in turn:
        serves = task.state == State.RUNNING
        if serves and not run.is_forced(task) and starting + begun >= settings.DRAIN_AT_ONCE:
            run.waits(task, "drain_in_line", at_once=settings.DRAIN_AT_ONCE)
            continue
        found, why = _find(planner, views.get(task.pk), run.now)
        if found is None:
            nowhere.append(task)
            whys = [{"code": str(one.code), "params": one.params} for one in why]
            run.waits(task, "drain_no_place", whys=whys)
        elif serves:
            begun += run.attempt(task, partial(begin, placement=found))
        else:
            moved += run.attempt(task, partial(move, placement=found))
    return begun, moved, nowhere


def _find(planner: Planner, view: TaskView | None, now: datetime) -> tuple[Placement | None, list[Reason]]:
    """Where else a task could go, by the scheduler's own decision; else its reasons, in numbers."""
    if view is None:
        return None, [Reason(Code.INTERNAL)]
    plan = planner.place([view], now)
    if not plan.placements:
        return None, plan.refusals.get(view.id, [])
    return placement_of(plan.placements[0]), []
