"""What is left on a node, and why: for whoever waits until it is empty (LIFE-09)."""

from dataclasses import dataclass
from typing import Any

from agent.contract.states import TaskType
from apps.core import texts
from apps.fleet.models import Duty, Node
from apps.workloads.models import Claim
from apps.workloads.policy.moves import RUNS_ON_NODE


@dataclass(frozen=True)
class Left:
    """One attempt that still holds room on a node."""

    task_id: str
    name: str
    service: str
    tenant: str
    status: str
    attempt: int
    why: str
    params: dict[str, Any]

    @property
    def text(self) -> str:
        """Why it is still there, in the active language."""
        params = dict(self.params)
        inner = params.pop("why_code", None)
        if inner:
            params["why"] = texts.say(str(inner), params)
        return texts.say(self.why, params) if self.why else ""


def work_left(node: Node) -> list[Left]:
    """Every attempt that holds room there; `why` only on a node that is being emptied."""
    leaving = node.duty != Duty.SERVICE
    rows = (
        Claim.objects.filter(node=node, released_at__isnull=True)
        .select_related("task__group__tenant")
        .order_by("task__group_id", "task__rank", "attempt")
    )
    return [_left(claim, node, leaving) for claim in rows]


def _left(claim: Claim, node: Node, leaving: bool) -> Left:
    task, group = claim.task, claim.task.group
    why: str = ""
    params: dict[str, Any] = {}
    if claim.attempt != task.attempt or task.state not in RUNS_ON_NODE:
        why = "drain_leaving"
    elif leaving and group.task_type != TaskType.INFERENCE:
        why = "drain_needs_word"
    elif leaving:
        note = node.duty_notes.get(task.public_id) or {"code": "drain_moving", "params": {}}
        why, params = str(note["code"]), dict(note["params"])
    return Left(
        task_id=task.public_id,
        name=task.name,
        service=group.name,
        tenant=group.tenant.slug,
        status=task.state,
        attempt=claim.attempt,
        why=why,
        params=params,
    )


def next_step(node: Node, left: int) -> tuple[str, dict[str, Any]]:
    """The code, with its values, of what comes next for a node."""
    if node.duty == Duty.SERVICE:
        return ("upkeep_closed" if node.cordoned else "upkeep_in_service"), {}
    return ("upkeep_emptying", {"left": left}) if left else ("upkeep_empty", {})
