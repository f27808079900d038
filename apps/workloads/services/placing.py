"""Committing placements: claims, cards, ports and states together, or nothing (SCHED-12)."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from agent.contract.codes import Code, Reason, reason
from agent.contract.states import Phase, State
from apps.core.leases import Held
from apps.fleet.models import Card, Node, Port
from apps.tenants import redline
from apps.workloads.models import CardClaim, Claim, Task
from apps.workloads.state import Move, transition_many


class PlacementClash(Exception):
    """A placement of this slice does not hold any more; nothing of the slice was written."""


@dataclass(frozen=True)
class Placement:
    """A task on a node. `cards` are row ids; `percent` None = each card alone; `host_ports` are
    (container_port, host_port)."""

    task_id: int
    version: int
    node_id: int
    cards: tuple[int, ...]
    percent: int | None
    host_ports: tuple[tuple[int, int], ...]


def commit_placements(*, lease: Held, placements: list[Placement], now: datetime) -> set[int]:
    """Write one slice in one transaction of the lease holder; answers the row ids of its tasks.

    Raises PlacementClash (the caller then tries item by item) and LeaseLost.
    """
    if not placements:
        return set()
    try:
        with lease.transaction():
            _commit(placements, now)
    except IntegrityError:  # somebody holds one of the ports, or the same attempt exists
        raise PlacementClash from None
    return {placement.task_id for placement in placements}


def _commit(placements: list[Placement], now: datetime) -> None:
    card_ids = {card for placement in placements for card in placement.cards}
    cards = {
        card.pk: card for card in Card.objects.select_for_update().filter(pk__in=card_ids).order_by("pk")
    }
    node_ids = {placement.node_id for placement in placements}
    nodes = {node.pk: node for node in Node.objects.filter(pk__in=node_ids)}
    tasks = {
        task.pk: task
        for task in Task.objects.select_related("group__tenant").filter(
            pk__in=[placement.task_id for placement in placements]
        )
    }
    held = _held_by_card(card_ids)
    moves, claims = [], []
    for placement in placements:
        task, node = tasks.get(placement.task_id), nodes.get(placement.node_id)
        if task is None or node is None or node.cordoned or task.version != placement.version:
            raise PlacementClash
        for card_id in placement.cards:
            card = cards.get(card_id)
            if card is None or not card.present or card.quarantined_at or card.node_id != node.pk:
                raise PlacementClash
            _take(held[card_id], task.group.tenant_id, placement.percent)
        attempt = task.attempt + 1
        moves.append(
            Move(
                task.pk,
                placement.version,
                State.PENDING,
                State.SCHEDULING,
                reason(Code.PLACED, node=node.name),
                settings.CLAIM_DEADLINE_S,
                {
                    "attempt": attempt,
                    "node_id": node.pk,
                    "phase": Phase.PLACED,
                    "refusals": [],
                    "not_before": None,
                },
            )
        )
        claims.append(Claim(task=task, attempt=attempt, node=node, created_at=now))
    moved = transition_many(moves, actor="scheduler", now=now)
    if len(moved) != len(placements):
        raise PlacementClash
    with transaction.atomic():
        Claim.objects.bulk_create(claims)
        CardClaim.objects.bulk_create(
            CardClaim(claim=claim, card_id=card, percent=placement.percent)
            for claim, placement in zip(claims, placements, strict=True)
            for card in placement.cards
        )
        Port.objects.bulk_create(
            Port(
                node_id=placement.node_id,
                number=host_port,
                container_port=container_port,
                owner=claim.task.public_id,
                attempt=claim.attempt,
            )
            for claim, placement in zip(claims, placements, strict=True)
            for container_port, host_port in placement.host_ports
        )


def _held_by_card(card_ids: set[int]) -> dict[int, list[tuple[int, int | None]]]:
    """Live shares of each card as (tenant row id, percent or None for the card alone)."""
    held: dict[int, list[tuple[int, int | None]]] = defaultdict(list)
    rows = CardClaim.objects.filter(card__in=card_ids, claim__released_at__isnull=True).values_list(
        "card_id", "claim__task__group__tenant_id", "percent"
    )
    for card_id, tenant_id, percent in rows:
        held[card_id].append((tenant_id, percent))
    return held


def _take(shares: list[tuple[int, int | None]], tenant_id: int, percent: int | None) -> None:
    """Add a share to a card, or raise PlacementClash: never above the card (SCHED-05), never beside
    a tenant that shares no group with this one (SCHED-09)."""
    if shares and (percent is None or any(other is None for _, other in shares)):
        raise PlacementClash
    if percent is not None and percent + sum(other or 0 for _, other in shares) > 100:
        raise PlacementClash
    if any(not redline.may_share(tenant_id, other_tenant) for other_tenant, _ in shares):
        raise PlacementClash
    shares.append((tenant_id, percent))


def note_refusals(*, lease: Held, refusals: dict[int, list[Reason]], now: datetime) -> None:
    """Keep why each waiting task (by row id) fits nowhere, where it changed (SCHED-10)."""
    if not refusals:
        return
    with lease.transaction():
        for task in Task.objects.filter(pk__in=refusals, state=State.PENDING).only(
            "pk", "refusals", "reason_code"
        ):
            rows = [{"code": str(why.code), "params": why.params} for why in refusals[task.pk]]
            if rows and (rows != task.refusals or task.reason_code != rows[0]["code"]):
                first: dict[str, Any] = rows[0]
                Task.objects.filter(pk=task.pk, state=State.PENDING).update(
                    refusals=rows, reason_code=first["code"], reason_params=first["params"]
                )
