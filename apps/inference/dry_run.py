"""What a creation would do, without doing it (SVC-15): checked, estimated and placed by the scheduler's own
decision on the fleet as it is now.

Writes nothing, not even a quota's row. What it says may be over a second later: somebody else may come first.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.db import transaction

from apps.core import texts
from apps.inference.hearing import NODES_SHOWN, Heard, hear_nodes, say_reasons
from apps.inference.selectors import tell
from apps.inference.services.creating import ensure_quota, read_request, refuse_taken
from apps.inference.services.foreseeing import find_warnings, would_be_tasks
from apps.scheduling.policy.decide import decide
from apps.scheduling.policy.plan import Placed, Preemption
from apps.scheduling.policy.snapshot import CardView, NodeView
from apps.scheduling.selectors import load_snapshot_with
from apps.tenants.scope import Viewer
from apps.workloads.models import Task


def try_service(*, actor: Viewer, body: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Where each task would go, or why it would wait. Raises what `create_service` would."""
    tenant, spec = read_request(actor, body, now)
    with transaction.atomic():
        ensure_quota(tenant, spec)
        refuse_taken(tenant, spec)
        transaction.set_rollback(True)
    tasks = would_be_tasks(tenant, spec, now)
    snapshot = load_snapshot_with(tasks, now)
    plan = decide(snapshot, now)
    mine = {task.pk for task in tasks}
    placed = {one.task_id: one for one in plan.placements if one.task_id in mine}
    cleared = {one.task_id: one for one in plan.preemptions if one.task_id in mine}
    waiting = [view for view in snapshot.tasks if view.id in mine and view.id not in placed]
    heard = hear_nodes(actor, snapshot, waiting) if waiting else {}
    nodes = {node.id: node for node in snapshot.nodes}
    return {
        "dry_run": True,
        "fits": len(placed) == len(tasks),
        "replicas": spec.replicas,
        "gpus": spec.gpus,
        "estimated_gpu_memory_mb": spec.worker.estimated_gpu_memory_mb,
        "warnings": [tell(code, {}) for code in find_warnings(spec)],
        "tasks": [
            _placed(task, placed[task.pk], nodes)
            if task.pk in placed
            else _waiting(
                actor,
                task,
                cleared.get(task.pk),
                nodes,
                heard.get(task.pk, Heard()),
                say_reasons(actor, plan.refusals.get(task.pk, [])),
            )
            for task in tasks
        ],
    }


def _placed(task: Task, where: Placed, nodes: Mapping[int, NodeView]) -> dict[str, Any]:
    node = nodes[where.node_id]
    code = "would_borrow" if where.borrowed else "would_start"
    return _told(task, code, node, where.cards, preempts=0) | {"refusals": [], "nodes": []}


def _waiting(
    viewer: Viewer,
    task: Task,
    cleared: Preemption | None,
    nodes: Mapping[int, NodeView],
    heard: Heard,
    refusals: list[dict[str, Any]],
) -> dict[str, Any]:
    if cleared is None:
        told = _told(task, "would_wait", None, (), preempts=0)
    else:
        code = "would_preempt" if cleared.victims else "would_wait_for_room"
        node = nodes[cleared.node_id]
        told = _told(task, code, node, cleared.cards, preempts=len(cleared.victims))
    return told | {"refusals": refusals, "nodes": heard.words[:NODES_SHOWN]}


def _told(
    task: Task, code: str, node: NodeView | None, card_ids: tuple[int, ...], *, preempts: int
) -> dict[str, Any]:
    cards = [] if node is None else [card for card in node.cards if card.id in card_ids]
    params = {
        "node": node.name if node else "",
        "cards": ", ".join(f"{card.index} ({card.model})" for card in cards),
        "tasks": preempts,
    }
    return {
        "name": task.name,
        "outcome": code,
        "text": texts.say(code, params),
        "node": node.name if node else None,
        "cards": [_card(card) for card in cards],
        "preempts": preempts,
    }


def _card(card: CardView) -> dict[str, Any]:
    return {"index": card.index, "model": card.model, "vram_total_mb": card.vram_total_mb}
