"""Nodes and cards as the scheduler sees them, with all that is held there.

Owns how claims and kept room become holds. One statement reads all live claims, so that a node's cards,
tenants and containers are told of one moment.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q

from agent.contract.states import Parallelism, RuntimeKind, State, TaskType
from apps.fleet import selectors as fleet
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView
from apps.scheduling.waiting import gang_of
from apps.workloads.models import Claim
from apps.workloads.policy.moves import SERVING
from apps.workloads.policy.room import is_host_wide
from apps.workloads.selectors import LEAVING, kept_cards, lendable_shares, lent_cards

_RUNTIMES = {kind.value: kind for kind in RuntimeKind}
_NO = frozenset({"", "0", "false", "no", "off"})
# States in which a task's place can be taken from it.
_EVICTABLE = SERVING | {State.SLEEPING}


@dataclass(slots=True)
class Living:
    """What lives on one node: tasks by group, whose they are (row ids), whose reach beyond their container,
    and how many count for the inference cap."""

    siblings: Counter[int] = field(default_factory=Counter)
    tenants: set[int] = field(default_factory=set)
    host_wide: set[int] = field(default_factory=set)
    inference: int = 0


class _Held:
    """All that is held, by node and by card (row ids)."""

    def __init__(self) -> None:
        self.nodes: dict[int, Living] = defaultdict(Living)
        self.cards: dict[int, list[CardHold]] = defaultdict(list)


def load_nodes(now: datetime, model_paths: Collection[str]) -> tuple[NodeView, ...]:
    """All nodes, by name. Of the models that lie there only these paths are told."""
    rows = fleet.placement_rows()
    held = _Held()
    _read_claims(held, rows, now)
    _read_kept(held, now)
    models = fleet.nodes_with_models(model_paths) if model_paths else {}
    return tuple(_node_view(row, now, held, models.get(row.id, frozenset())) for row in rows)


def _node_view(row: fleet.NodeRow, now: datetime, held: _Held, models: frozenset[str]) -> NodeView:
    living = held.nodes.get(row.id) or Living()
    return NodeView(
        id=row.id,
        public_id=row.public_id,
        name=row.name,
        online=fleet.is_online(row.last_seen_at, now),
        cordoned=row.cordoned,
        runtime=_RUNTIMES.get(row.runtime),
        engines=row.engines,
        open_to=row.open_to,
        cards=tuple(_card_view(card, held.cards.get(card.id, ())) for card in row.cards if card.present),
        port_first=row.port_first,
        port_last=row.port_last,
        ports=row.ports,
        reachable=row.reachable,
        siblings=living.siblings,
        cpu_percent=row.load.cpu_percent,
        memory_percent=row.load.memory_percent,
        disk_percent=row.load.disk_percent,
        volume_prefixes=row.volume_prefixes,
        inference_cap=row.inference_cap,
        inference_count=living.inference,
        models=models,
        images=row.images,
        tenants=frozenset(living.tenants),
        host_wide=frozenset(living.host_wide),
        host_ipc=row.host_ipc,
        zone=str(row.labels.get("zone", "")),
        rdma=str(row.labels.get("rdma", "")).strip().lower() not in _NO,
    )


def _card_view(card: fleet.CardRow, holds: Collection[CardHold]) -> CardView:
    return CardView(
        id=card.id,
        index=card.index,
        vendor=card.vendor,
        model=card.model,
        vram_total_mb=card.vram_total_mb,
        used_mb=card.vram_used_mb,
        holds=tuple(holds),
        compute_capability=card.compute_capability or None,
        quarantined=card.quarantined_at is not None,
        foreign_mb=card.foreign_mb,
        foreign=card.foreign or "",
        link_group=card.link_group,
        pcie_root=card.pcie_root,
    )


def _read_claims(held: _Held, rows: Iterable[fleet.NodeRow], now: datetime) -> None:
    owned = {card.id: card.owned_mb for row in rows for card in row.cards}
    host_ipc = {row.id: row.host_ipc for row in rows}
    lent = lent_cards()
    lendable = set(lendable_shares().values_list("pk", flat=True))
    paused_since = now - timedelta(seconds=settings.PREEMPTION_PAUSE_S)
    before = 0
    for row in _live_claims():
        claim_id, node_id, attempt, since, share_id, card_id, percent = row[:7]
        task_id, public_id, state, preempted_at, generation, gpus, counted, leaving = row[7:15]
        group_id, tenant_id, priority, preemptible, task_type, parallelism = row[15:]
        inference = task_type == TaskType.INFERENCE
        staged = parallelism == Parallelism.PIPELINE_PARALLEL
        if claim_id != before:  # a claim of several cards is a row of each
            before = claim_id
            living = held.nodes[node_id]
            living.siblings[group_id] += 1
            living.tenants.add(tenant_id)
            living.inference += inference and counted
            if is_host_wide(
                host_network=staged, inference=inference, cards=gpus, host_ipc=host_ipc.get(node_id)
            ):
                living.host_wide.add(tenant_id)
        if card_id is None:
            continue
        rested = preempted_at is None or preempted_at <= paused_since
        told = owned.get(card_id)
        held.cards[card_id].append(
            CardHold(
                tenant_id=tenant_id,
                # Without ports nothing is counted on its card (SCHED-16); what it measures still is.
                percent=0 if percent is not None and inference and not counted else percent,
                inference=inference,
                task_id=task_id,
                priority=priority,
                preemptible=preemptible and rested and not leaving and state in _EVICTABLE,
                since=since,
                sleeping=state == State.SLEEPING and not leaving,
                lendable=share_id in lendable,
                borrowed=(claim_id, card_id) in lent,
                measured_mb=None if told is None else told.get(f"{public_id}.{attempt}", 0),
                leaving=leaving,
                gang=gang_of(group_id, generation) if staged else "",
            )
        )


def _live_claims() -> Any:
    return (
        Claim.objects.filter(released_at__isnull=True)
        .annotate(counted=~Q(task__ports=[]), leaving=LEAVING)
        .order_by("pk")
        .values_list(
            *("pk", "node_id", "attempt", "created_at", "cards__pk", "cards__card_id", "cards__percent"),
            *("task_id", "task__public_id", "task__state", "task__preempted_at", "task__generation"),
            *("task__gpu_required", "counted", "leaving", "task__group_id"),
            *(f"task__group__{name}" for name in ("tenant_id", "priority", "preemptible")),
            *("task__group__task_type", "task__group__parallelism"),
        )
    )


def _read_kept(held: _Held, now: datetime) -> None:
    group = (f"reservation__task__group__{name}" for name in ("pk", "tenant_id", "priority", "task_type"))
    rows = kept_cards(now).values_list(
        *("card_id", "reservation__task_id", "reservation__percent", "reservation__task__generation"),
        *group,
        "reservation__task__group__parallelism",
    )
    for card_id, task_id, percent, generation, *of_group in rows:
        group_id, tenant_id, priority, task_type, parallelism = of_group
        staged = parallelism == Parallelism.PIPELINE_PARALLEL
        held.cards[card_id].append(
            CardHold(
                tenant_id=tenant_id,
                percent=percent,
                inference=task_type == TaskType.INFERENCE,
                priority=priority,
                reserved_for=task_id,
                gang=gang_of(group_id, generation) if staged else "",
            )
        )
