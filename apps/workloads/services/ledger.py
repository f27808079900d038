"""What placements and kept room are checked against, read under the locks of whoever writes them (SCHED-12).

Owns the order of the locks: nodes, cards, groups. Whatever is added to a node or card is added under them, so
that nothing becomes less free than it was read until the transaction ends.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from agent.contract.states import Parallelism, TaskType
from apps.fleet.models import Card, Node
from apps.fleet.selectors import inference_cap
from apps.tenants import redline
from apps.tenants.models import TenantStatus
from apps.workloads.models import CardClaim, Claim, Reservation
from apps.workloads.policy.room import Asked, HeldCard, HeldNode, Ledger, Share, is_host_wide
from apps.workloads.selectors import LEAVING, kept_cards, lendable_shares, lent_cards, waiting
from apps.workloads.state import Group, lock_groups


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that may be placed, as it stands under the lock of its group. `reserved`: room is kept for
    it."""

    id: int
    version: int
    attempt: int
    public_id: str
    priority: int
    made_room_at: datetime | None
    tenant_id: int
    inference: bool
    counted: bool
    host_network: bool
    reserved: bool

    def asks(
        self, node_id: int, cards: tuple[int, ...], percent: int | None, *, borrowed: bool = False
    ) -> Asked:
        """What it asks of a node and cards (row ids)."""
        return Asked(
            self.id,
            self.tenant_id,
            node_id,
            cards,
            percent,
            self.inference,
            self.counted,
            self.host_network,
            borrowed,
        )


@dataclass(frozen=True, slots=True)
class Books:
    """`tasks`: those of the asked ones that may be placed, `nodes`: names; both by row id. `groups`: the
    locked ones."""

    ledger: Ledger
    tasks: dict[int, Waiting]
    nodes: dict[int, str]
    groups: list[Group]


def open_books(
    *,
    tasks: Collection[int],
    nodes: Collection[int],
    cards: Collection[int],
    now: datetime,
    borrowed: Collection[int] = (),
    victims: Collection[int] | None = None,
) -> Books:
    """Lock nodes, cards and the groups of these tasks (row ids), then read what they hold. `borrowed`: those
    of the cards that are sleepers', whose groups are locked too. `victims`: tasks that shall give way, who
    are left out, and with them all that leaves by itself; None = all that is there counts. Call inside a
    transaction."""
    names, held_nodes = _lock_nodes(nodes)
    held_cards = _lock_cards(cards)
    lenders = (
        CardClaim.objects.filter(card__in=borrowed, claim__released_at__isnull=True).values_list(
            "claim__task_id", flat=True
        )
        if borrowed
        else []
    )
    groups = lock_groups({*tasks, *(victims or ()), *lenders})
    live = Claim.objects.filter(released_at__isnull=True)
    if victims is not None:
        live = live.exclude(task__in=victims).exclude(LEAVING)
    _read_residents(live.filter(node__pk__among=nodes), held_nodes)
    _read_shares(live, held_cards, borrowed, now)
    shared = redline.sharing()
    ledger = Ledger(
        held_nodes,
        held_cards,
        may_share=lambda one, other: other in shared.get(one, ()),
        limit_percent=100 - round(settings.VRAM_RESERVE_RATIO * 100),
    )
    return Books(ledger, _read_waiting(tasks, now), names, groups)


def _lock_nodes(ids: Collection[int]) -> tuple[dict[int, str], dict[int, HeldNode]]:
    rows = list(
        Node.objects.select_for_update(no_key=True)
        .filter(pk__among=ids)
        .order_by("pk")
        .values_list("pk", "name", "cordoned", "host_ipc", "inference_cap")
    )
    present = Card.objects.filter(node__pk__among=ids, present=True).values_list("node_id")
    cards = dict(present.annotate(count=Count("pk")))
    held = {
        pk: HeldNode(usable=not cordoned, host_ipc=ipc, inference_cap=inference_cap(cap, cards.get(pk, 0)))
        for pk, _, cordoned, ipc, cap in rows
    }
    return {row[0]: row[1] for row in rows}, held


def _lock_cards(ids: Collection[int]) -> dict[int, HeldCard]:
    rows = Card.objects.select_for_update(no_key=True).filter(pk__among=ids).order_by("pk")
    return {
        pk: HeldCard(node_id, usable=present and quarantined_at is None)
        for pk, node_id, present, quarantined_at in rows.values_list(
            "pk", "node_id", "present", "quarantined_at"
        )
    }


def _read_residents(live: QuerySet[Claim], nodes: dict[int, HeldNode]) -> None:
    """Whose work lives on the nodes, and how many inference containers (SCHED-06, -09)."""
    rows = (
        live.annotate(counted=~Q(task__ports=[]))
        .order_by()
        .values_list(
            "node_id",
            "task__group__tenant_id",
            "task__group__task_type",
            "task__group__parallelism",
            "task__gpu_required",
            "counted",
        )
        .annotate(count=Count("pk"))
    )
    for node_id, tenant_id, task_type, parallelism, cards, counted, count in rows:
        node, inference = nodes[node_id], task_type == TaskType.INFERENCE
        node.tenants |= {tenant_id}
        if is_host_wide(
            host_network=parallelism == Parallelism.PIPELINE_PARALLEL,
            inference=inference,
            cards=cards,
            host_ipc=node.host_ipc,
        ):
            node.host_wide |= {tenant_id}
        if inference and counted:
            node.inference += count


def _read_shares(
    live: QuerySet[Claim], cards: dict[int, HeldCard], borrowed: Collection[int], now: datetime
) -> None:
    """Live claims on the cards, and room that is kept there."""
    lent = lent_cards()
    lendable = set(
        lendable_shares().filter(card__in=borrowed).values_list("pk", flat=True) if borrowed else ()
    )
    held = CardClaim.objects.filter(card__pk__among=cards, claim__in=live)
    held = held.annotate(counted=~Q(claim__task__ports=[]))
    for pk, card_id, claim_id, percent, counted, task_id, tenant_id, task_type in held.values_list(
        "pk",
        "card_id",
        "claim_id",
        "percent",
        "counted",
        "claim__task_id",
        "claim__task__group__tenant_id",
        "claim__task__group__task_type",
    ):
        cards[card_id].shares.append(
            Share(
                task_id,
                tenant_id,
                percent,
                inference=task_type == TaskType.INFERENCE,
                counted=counted,
                lendable=pk in lendable,
                borrowed=(claim_id, card_id) in lent,
                id=pk,
            )
        )
    for card_id, task_id, percent, tenant_id, task_type in kept_cards(now).values_list(
        "card_id",
        "reservation__task_id",
        "reservation__percent",
        "reservation__task__group__tenant_id",
        "reservation__task__group__task_type",
    ):
        inference = task_type == TaskType.INFERENCE
        if card_id in cards:
            cards[card_id].shares.append(Share(task_id, tenant_id, percent, inference=inference, kept=True))


def _read_waiting(ids: Collection[int], now: datetime) -> dict[int, Waiting]:
    kept = Reservation.objects.filter(task=OuterRef("pk"), until__gt=now)
    rows = (
        waiting()
        .filter(pk__among=ids)
        .exclude(group__tenant__status=TenantStatus.SUSPENDED)
        .annotate(
            inference=Q(group__task_type=TaskType.INFERENCE),
            counted=~Q(ports=[]),
            host_network=Q(group__parallelism=Parallelism.PIPELINE_PARALLEL),
            reserved=Exists(kept),
        )
        .values_list(
            "pk",
            "version",
            "attempt",
            "public_id",
            "group__priority",
            "made_room_at",
            "group__tenant_id",
            "inference",
            "counted",
            "host_network",
            "reserved",
        )
    )
    return {row[0]: Waiting(*row) for row in rows}
