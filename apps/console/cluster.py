"""The cluster by card: what is held, asleep, lent, kept, in quarantine and out of bounds (SHARE-02).

Reads only, what the scheduler itself sees; a fixed number of statements. Who may see it the page decides.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.paginator import Paginator
from django.urls import reverse

from apps.core.texts import say_size
from apps.fleet.models import Node
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Snapshot
from apps.scheduling.selectors import load_snapshot_of
from apps.tenants.models import Tenant

ON_A_PAGE = 40
NAMES_SHOWN = 3


def build_map(pool: str, model: str, page: str | None, now: datetime) -> dict[str, Any]:
    """One page of nodes; `pool` and `model` "" = all. Figures above the map count what is chosen."""
    snapshot = load_snapshot_of([], now)
    pools = dict(Node.objects.values_list("pk", "pool"))
    tenants = dict(Tenant.objects.order_by("slug").values_list("pk", "slug"))
    chosen = [
        node
        for node in snapshot.nodes
        if (not pool or pools.get(node.id) == pool)
        and (not model or any(card.model == model for card in node.cards))
    ]
    shown = Paginator(chosen, ON_A_PAGE).get_page(page)
    return {
        "page": shown,
        "pool": pool,
        "model": model,
        "pools": sorted({name for name in pools.values() if name}),
        "models": sorted({card.model for node in snapshot.nodes for card in node.cards}),
        "nodes": [_node(node, pools.get(node.id, ""), snapshot, tenants) for node in shown.object_list],
        "total": len(snapshot.nodes),
        "figures": _figures([card for node in chosen for card in node.cards]),
        "at": now,
    }


def _figures(cards: list[CardView]) -> dict[str, int]:
    holds = [[hold for hold in card.holds if not hold.borrowed] for card in cards]
    percents = [min(100, sum(hold.promise for hold in mine)) for mine in holds]
    return {
        "cards": len(cards),
        "empty": sum(not card.holds and not card.quarantined for card in cards),
        "percent": round(sum(percents) / len(cards)) if cards else 0,
        "sleeping": sum(any(hold.sleeping for hold in mine) for mine in holds),
        "lent": sum(any(hold.borrowed for hold in card.holds) for card in cards),
        "kept": sum(any(hold.reserved_for for hold in mine) for mine in holds),
        "quarantined": sum(card.quarantined for card in cards),
    }


def _node(node: NodeView, pool: str, snapshot: Snapshot, tenants: dict[int, str]) -> dict[str, Any]:
    return {
        "name": node.name,
        "link": reverse("admin:fleet_node_change", args=[node.id]),
        "pool": pool,
        "online": node.online,
        "cordoned": node.cordoned,
        "host_wide": [tenants.get(tenant, "?") for tenant in sorted(node.host_wide)],
        "cards": [_card(card, snapshot, tenants) for card in node.cards],
    }


def _card(card: CardView, snapshot: Snapshot, tenants: dict[int, str]) -> dict[str, Any]:
    """`shares` are bars of a picture 100 wide; `barred`: tenants for whom the card is out of bounds now."""
    total, used = card.vram_total_mb, card.used_mb
    holds = [hold for hold in card.holds if not hold.borrowed]
    barred = _barred(card.holds, snapshot, tenants)
    return {
        "index": card.index,
        "model": card.model,
        "shares": _shares(holds),
        "percent": min(100, sum(hold.promise for hold in holds)),
        "sleeping": sum(hold.promise for hold in holds if hold.sleeping),
        "kept": sum(hold.promise for hold in holds if hold.reserved_for),
        "lent": any(hold.borrowed for hold in card.holds),
        "quarantined": card.quarantined,
        "free": None if total is None or used is None else say_size(max(0, total - used)),
        "total": None if total is None else say_size(total),
        "foreign": say_size(card.foreign_mb) if card.foreign_mb else "",
        "foreign_process": card.foreign,
        "barred": len(barred),
        "barred_names": barred[:NAMES_SHOWN],
        "barred_more": max(0, len(barred) - NAMES_SHOWN),
        "link": reverse("admin:fleet_card_change", args=[card.id]),
    }


def _shares(holds: Iterable[CardHold]) -> list[dict[str, Any]]:
    """Where each hold's bar begins and how wide it is, those that sleep and kept room last."""
    found, start = [], 0
    for kind, mine in (
        ("held", [hold for hold in holds if not hold.sleeping and not hold.reserved_for]),
        ("sleeping", [hold for hold in holds if hold.sleeping]),
        ("kept", [hold for hold in holds if hold.reserved_for]),
    ):
        for hold in mine:
            width = min(hold.promise, 100 - start)
            found.append({"kind": kind, "x": start, "width": width})
            start += width
    return found


def _barred(holds: Iterable[CardHold], snapshot: Snapshot, tenants: dict[int, str]) -> list[str]:
    """Tenants that share no group with one that holds a part of the card (SCHED-09)."""
    there = {hold.tenant_id for hold in holds}
    if not there:
        return []
    return [
        slug
        for tenant, slug in tenants.items()
        if any(not snapshot.may_share(tenant, other) for other in there)
    ]
