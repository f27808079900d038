"""What is left on a node, how far it is, and why: for whoever waits until it is empty (LIFE-09)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent.contract.codes import Code
from agent.contract.states import State, TaskType
from apps.core import texts
from apps.fleet.models import Duty, Node
from apps.workloads.models import Claim, Event, Task
from apps.workloads.policy.moves import RUNS_ON_NODE
from apps.workloads.selectors import is_exchanged

DONE_LIMIT = 200  # services that are told as done


class Step(StrEnum):
    """How far an attempt on a node that is being emptied is: it waits for a turn or a place; its
    replacement starts elsewhere; that one serves and running calls end here; it is being stopped; it is no
    inference and stays; its service has nothing there any more."""

    WAITING = "waiting"
    STARTING = "starting"
    SWITCHED = "switched"
    STOPPING = "stopping"
    STAYING = "staying"
    DONE = "done"


@dataclass(frozen=True)
class Left:
    """One attempt that still holds room on a node. `step` None on a node that is not being emptied."""

    task_id: str
    name: str
    service: str
    tenant: str
    status: str
    attempt: int
    why: str
    params: dict[str, Any]
    step: Step | None = None
    whys: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Why it is still there, in the active language, with the scheduler's refusals in numbers."""
        if not self.why:
            return ""
        told = " ".join(texts.say(str(one["code"]), one["params"]) for one in self.whys)
        return texts.say(self.why, {**self.params, "why": told}).rstrip()


def work_left(node: Node) -> list[Left]:
    """Every attempt that holds room there; `why` only on a node that is being emptied."""
    leaving = node.duty != Duty.SERVICE
    rows = (
        Claim.objects.filter(node=node, released_at__isnull=True)
        .select_related("task__group__tenant", "task__replacement__node")
        .order_by("task__group_id", "task__rank", "attempt")
    )
    return [_left(claim, node, leaving) for claim in rows]


def work_done(node: Node, left: Iterable[Left]) -> list[tuple[str, str]]:
    """(tenant, service) of what moved off since the emptying began and has nothing left there."""
    if node.duty == Duty.SERVICE or node.duty_since is None:
        return []
    still = {(one.tenant, one.service) for one in left}
    moved = Event.objects.filter(
        code__in=[Code.NODE_DRAINING, Code.NODE_FORCED], params__node=node.name, at__gte=node.duty_since
    )
    named = ("group__tenant__slug", "group__name")
    names = moved.order_by(*named).values_list(*named).distinct()
    return [pair for pair in names[:DONE_LIMIT] if pair not in still]


def _left(claim: Claim, node: Node, leaving: bool) -> Left:
    task, group = claim.task, claim.task.group
    step, why, params, whys = _progress(claim, node) if leaving else (None, "", {}, [])
    if not leaving and (claim.attempt != task.attempt or task.state not in RUNS_ON_NODE):
        why = "drain_leaving"
    return Left(
        task_id=task.public_id,
        name=task.name,
        service=group.name,
        tenant=group.tenant.slug,
        status=task.state,
        attempt=claim.attempt,
        why=why,
        params=params,
        step=step,
        whys=whys,
    )


def _progress(claim: Claim, node: Node) -> tuple[Step, str, dict[str, Any], list[dict[str, Any]]]:
    task = claim.task
    if task.retired_at is not None and task.state == State.DRAINING:
        return Step.SWITCHED, "drain_switched", {}, []
    if claim.attempt != task.attempt or task.state not in RUNS_ON_NODE:
        return Step.STOPPING, "drain_leaving", {}, []
    if not is_exchanged(task.group):
        staged = task.group.task_type == TaskType.INFERENCE
        return Step.STAYING, "drain_needs_word_stage" if staged else "drain_needs_word", {}, []
    new: Task | None = getattr(task, "replacement", None)
    if new is not None:
        return _of_replacement(new)
    note = node.duty_notes.get(task.public_id)
    if note is None:
        return Step.WAITING, "drain_moving", {}, []
    params = dict(note["params"])
    return Step.WAITING, str(note["code"]), params, params.pop("whys", [])


def _of_replacement(new: Task) -> tuple[Step, str, dict[str, Any], list[dict[str, Any]]]:
    if new.state == State.PENDING:
        return Step.WAITING, "drain_no_place", {}, new.refusals
    if new.state == State.FAILED:
        error = new.last_error or {}
        last = {"code": error.get("code", ""), "params": error.get("params") or {}}
        return Step.STARTING, "drain_failing", {}, [last]
    return Step.STARTING, "drain_starting", {"on": new.node.name if new.node else "-", "phase": new.phase}, []


def next_step(node: Node, left: int) -> tuple[str, dict[str, Any]]:
    """The code, with its values, of what comes next for a node."""
    if node.duty == Duty.SERVICE:
        return ("upkeep_closed" if node.cordoned else "upkeep_in_service"), {}
    return ("upkeep_emptying", {"left": left}) if left else ("upkeep_empty", {})
