"""The decision: who goes where, and why the rest waits (SCHED-14).

Priority first, then first come first served (SCHED-02); nothing is forced (SCHED-10). The same for
the live tick, a dry run and simulation. Deterministic: equal snapshots give equal plans.
"""

from collections.abc import Callable, Iterable
from datetime import datetime

from agent.contract.codes import Code, Reason, reason
from apps.scheduling.policy.board import Board
from apps.scheduling.policy.plan import Placed, Plan, sum_up
from apps.scheduling.policy.shapes import Shape, ShapeKey, shape_of
from apps.scheduling.policy.snapshot import Snapshot, TaskView


def in_order(tasks: Iterable[TaskView]) -> list[TaskView]:
    """Higher priority first, then first come first served; by row id where both tie."""
    return sorted(tasks, key=lambda task: (-task.priority, task.created_at, task.id))


def _no_pause() -> None:
    return None


class Planner:
    """Decides in portions over one working copy, so that a loop may commit between them.

    `breathe` is called now and then while it works; exceptions of the types `fatal` end the decision.
    Any other one, of a plugin that trips over one task, goes into the plan's `broken` (RECOV-05).
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        breathe: Callable[[], None] = _no_pause,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        self._snapshot = snapshot
        self._breathe = breathe
        self._fatal = fatal
        self._board = Board(snapshot)
        self._shapes: dict[ShapeKey, Shape] = {}
        self._sums: dict[ShapeKey, list[Reason]] = {}

    def place(self, tasks: Iterable[TaskView], now: datetime) -> Plan:
        """Decide for these tasks, which must come in order; room that earlier portions took is gone."""
        plan = Plan()
        for task in tasks:
            if task.not_before is not None and task.not_before > now:
                continue
            suspended = self._snapshot.suspended.get(task.tenant_id)
            if suspended is not None:
                plan.refusals[task.id] = [reason(Code.TENANT_SUSPENDED, why=suspended)]
                continue
            try:
                self._place_one(task, plan)
            except self._fatal:
                raise
            except Exception as error:
                plan.broken[task.id] = error
                plan.refusals[task.id] = [reason(Code.INTERNAL)]
        return plan

    def _place_one(self, task: TaskView, plan: Plan) -> None:
        key = shape_of(task)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape(self._board, task, self._breathe)
        found = None if key in self._sums else shape.best(task)
        if found is None:
            if key not in self._sums:  # no node is left, and none will be in this decision
                self._sums[key] = sum_up(shape.refused.values())
            plan.refusals[task.id] = self._sums[key]
            return
        room, cards = found
        ports = self._board.take(task, room.place, [card.view.id for card in cards])
        plan.placements.append(
            Placed(
                task_id=task.id,
                version=task.version,
                node_id=room.view.id,
                node_public_id=room.view.public_id,
                cards=tuple(card.view.id for card in cards),
                percent=None if task.whole_cards or not cards else task.percent,
                host_ports=ports,
            )
        )


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """The whole plan for a snapshot at a moment."""
    return Planner(snapshot).place(in_order(snapshot.tasks), now)
