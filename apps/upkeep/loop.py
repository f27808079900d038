"""The drain loop: moves inference off nodes that are being emptied (LIFE-09).

Owns whose turn it is: of each service one task at a time, and none while another of it is starting.
Where it goes is the scheduler's own decision; the move is one transaction of workloads. Nothing is moved
without a place.
"""

import logging
from collections import defaultdict
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from agent.contract.states import Desired, Phase, State, TaskType
from apps.core.leases import Held, LeaseLost
from apps.core.ticks import tick
from apps.fleet.models import Duty, Node
from apps.fleet.services import note_duty
from apps.scheduling.policy.decide import Planner, in_order
from apps.scheduling.selectors import load_snapshot_of
from apps.workloads.models import Task
from apps.workloads.services import Placement, PlacementClash, move_task

log = logging.getLogger("heteroflow.upkeep")

_MOVABLE = (State.SCHEDULING, State.RUNNING)


@tick("upkeep.drain", every="DRAIN_PERIOD_S")
def drain(lease: Held, now: datetime) -> dict[str, Any]:
    """One step for every node that is being emptied; answers how many tasks moved, and wait."""
    nodes = {node.pk: node for node in Node.objects.exclude(duty=Duty.SERVICE)}
    if not nodes:
        return {"nodes": 0}
    notes: dict[int, dict[str, dict[str, Any]]] = {pk: {} for pk in nodes}
    turn = _whose_turn(nodes, notes)
    moved = _move(lease, turn, nodes, notes, now) if turn else 0
    for pk, found in notes.items():
        if nodes[pk].duty_notes != found:
            note_duty(lease=lease, node_id=pk, notes=found)
    return {"nodes": len(nodes), "moved": moved, "waiting": sum(map(len, notes.values()))}


def _whose_turn(nodes: dict[int, Node], notes: dict[int, dict[str, dict[str, Any]]]) -> dict[int, Task]:
    """Tasks to move now, by row id; for the others the note says why they wait."""
    there = Task.objects.select_related("group").filter(
        node__in=nodes,
        state__in=_MOVABLE,
        desired=Desired.RUN,
        group__task_type=TaskType.INFERENCE,
        group__deleted_at__isnull=True,
    )
    by_group: dict[int, list[Task]] = defaultdict(list)
    for task in there.order_by("group_id", "rank"):
        by_group[task.group_id].append(task)
    starting: dict[int, int] = defaultdict(int)
    siblings = Task.objects.filter(group__in=by_group, desired=Desired.RUN).exclude(node__in=nodes)
    for group_id, state, phase in siblings.values_list("group_id", "state", "phase"):
        starting[group_id] += state == State.SCHEDULING or (state == State.RUNNING and phase != Phase.READY)
    turn: dict[int, Task] = {}
    for group_id, tasks in by_group.items():
        # What serves nobody yet may go at once; of those that serve, one, when no other is starting.
        serving = [task for task in tasks if task.state == State.RUNNING]
        turn |= {task.pk: task for task in tasks if task.state == State.SCHEDULING}
        now_one = serving[:1] if not starting[group_id] and len(serving) == len(tasks) else []
        turn |= {task.pk: task for task in now_one}
        for task in serving:
            if task.pk not in turn and task.node_id is not None:
                notes[task.node_id][task.public_id] = {"code": "drain_in_turn", "params": {}}
    return turn


def _move(
    lease: Held,
    turn: dict[int, Task],
    nodes: dict[int, Node],
    notes: dict[int, dict[str, dict[str, Any]]],
    now: datetime,
) -> int:
    snapshot = load_snapshot_of(list(turn), now)
    planner = Planner(snapshot, fatal=(LeaseLost, DatabaseError))
    plan = planner.place(in_order(snapshot.tasks), now)
    for task_id, why in plan.refusals.items():
        task = turn[task_id]
        if task.node_id is not None:
            first = why[0]
            params = {**first.params, "why_code": str(first.code)}
            notes[task.node_id][task.public_id] = {"code": "drain_no_place", "params": params}
    moved = 0
    for item in plan.placements:
        placement = Placement(
            task_id=item.task_id,
            version=item.version,
            node_id=item.node_id,
            cards=item.cards,
            percent=item.percent,
            host_ports=item.host_ports,
        )
        try:
            moved += move_task(lease=lease, placement=placement, now=now)
        except LeaseLost:
            raise
        except PlacementClash:
            log.info("task row %s: its place was taken meanwhile; next run", item.task_id)
        except Exception:
            log.exception("task row %s could not be moved; the others go on", item.task_id)
    return moved
