"""What each node says to a task that waits, for people (SVC-14): the scheduler's own checks, in the active
language.

Owns who is told what: a viewer hears nodes in sight only, and nobody but operators whose work or which
process takes the room.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.contract.codes import Reason
from apps.core import texts
from apps.fleet import selectors as fleet
from apps.scheduling.policy.explain import Verdict, judge_nodes
from apps.scheduling.policy.plan import sum_up
from apps.scheduling.policy.snapshot import NodeView, Snapshot, TaskView
from apps.tenants.scope import Viewer
from apps.workloads.models import Task
from apps.workloads.policy.room import in_percent

NODES_SHOWN = 50  # of a task; the nearest misses


@dataclass(frozen=True)
class Heard:
    """What nodes say to one task: each its word, and one sentence for all of those that refuse it ("" where
    one would take it)."""

    words: list[dict[str, Any]] = field(default_factory=list)
    summary: str = ""


def hear_nodes(
    viewer: Viewer, snapshot: Snapshot, tasks: Iterable[TaskView] | None = None
) -> dict[int, Heard]:
    """What each node in the viewer's sight says to each of these tasks (all that wait in the snapshot), by
    the task's row id; the nearest misses first."""
    seen = set(fleet.nodes(viewer).values_list("pk", flat=True))
    asked = tuple(snapshot.tasks if tasks is None else tasks)
    parts = {task.id for task in asked if task.gang_size > 1}
    judged = judge_nodes(snapshot, asked)
    # Alike tasks have one list of verdicts: it is put into words once, however many replicas wait.
    kinds = {(id(verdicts), pk in parts): verdicts for pk, verdicts in judged.items()}
    mine = {kind: [one for one in verdicts if one.node.id in seen] for kind, verdicts in kinds.items()}
    shown = {one.node.id: one.node for found in mine.values() for one in found[:NODES_SHOWN]}
    holders = _holders_of(shown.values()) if viewer.is_operator else {}
    heard = {kind: _hear(viewer, verdicts, holders, part=kind[1]) for kind, verdicts in mine.items()}
    return {pk: heard[id(verdicts), pk in parts] for pk, verdicts in judged.items()}


def _hear(
    viewer: Viewer, verdicts: list[Verdict], holders: Mapping[int, list[dict[str, Any]]], *, part: bool
) -> Heard:
    refused = [one.refused for one in verdicts if one.refused is not None]
    told = sum_up((one, 1) for one in refused) if verdicts and len(refused) == len(verdicts) else []
    sentences = [one["text"] for one in say_reasons(viewer, told)]
    words = [_word_of(viewer, one, holders, part=part) for one in verdicts]
    return Heard(words, " ".join(sentences))


def say_reasons(viewer: Viewer, reasons: Iterable[Reason]) -> list[dict[str, Any]]:
    """Reasons that were just found, with their sentences."""
    params = [(why.code, _told(viewer, why.params)) for why in reasons]
    return [{"code": code, "params": told, "text": texts.say(code, told)} for code, told in params]


def _told(viewer: Viewer, params: Mapping[str, Any]) -> dict[str, Any]:
    """The nodes are in sight; what remains is who holds memory beside the platform."""
    return {name: value for name, value in params.items() if viewer.is_operator or name != "process"}


def _word_of(
    viewer: Viewer, verdict: Verdict, holders: Mapping[int, list[dict[str, Any]]], *, part: bool
) -> dict[str, Any]:
    """One node's word; to operators also whose work holds its cards. `part`: of a gang, whose other parts
    need places too."""
    refused = verdict.refused
    code = "fits" if refused is None else str(refused.code)
    params = {} if refused is None else _told(viewer, refused.params)
    here = "here_fits_part" if part and refused is None else f"here_{code}"
    text = texts.say(here, params) if here in texts.TEXTS else texts.say(code, {"nodes": 1, **params})
    return {
        "node": verdict.node.name,
        "fits": refused is None,
        "reason": {"code": code, "params": params, "text": text},
        "holders": holders.get(verdict.node.id, []),
    }


def _holders_of(nodes: Iterable[NodeView]) -> dict[int, list[dict[str, Any]]]:
    """Who holds the cards of these nodes, by the node's row id: for operators alone."""
    held = [(node.id, card, hold) for node in nodes for card in node.cards for hold in card.holds]
    rows = Task.objects.filter(pk__in={hold.task_id or hold.reserved_for for _, _, hold in held})
    names = {
        pk: {"tenant": tenant, "service": service, "task": task}
        for pk, tenant, service, task in rows.values_list(
            "pk", "group__tenant__slug", "group__name", "public_id"
        )
    }
    found: dict[int, list[dict[str, Any]]] = {}
    for node_id, card, hold in held:
        whose = names.get(hold.task_id or hold.reserved_for)
        if whose is not None:
            state = "kept" if hold.reserved_for else "sleeping" if hold.sleeping else "held"
            said = {"card": card.index, **whose, "percent": in_percent(hold.percent), "state": state}
            found.setdefault(node_id, []).append(said)
    return found
