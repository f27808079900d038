"""Reads of machines: scope first (TEN-09), and the one plain read that the scheduler starts from.

Owns which nodes a tenant may use. Never judges freshness by anything but the server's clock.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db.models import Count, Q, QuerySet, TextField
from django.db.models.functions import Cast

from apps.core.errors import NotFound
from apps.core.ids import looks_like_id
from apps.core.json_text import as_text, parsed
from apps.fleet.doors import DoorRow
from apps.fleet.models import Card, DoorState, Liveness, ModelFile, Node, Port
from apps.tenants.scope import Viewer

log = logging.getLogger("heteroflow.fleet")


class CardRow(msgspec.Struct, frozen=True):
    """One present or vanished card. Memory in MB; None = the card did not answer, never zero. `foreign_mb` of
    the used memory belong to no attempt of ours, `foreign` is the process that holds most of it; `owned_mb`
    is what attempts hold, by "task.attempt". None = that can not be told."""

    id: int
    index: int
    vendor: str
    model: str
    vram_total_mb: int | None
    vram_used_mb: int | None
    compute_capability: str
    present: bool
    quarantined_at: datetime | None
    foreign_mb: int | None
    foreign: str | None
    link_group: int | None
    pcie_root: str
    owned_mb: dict[str, int | None] | None


class LoadRow(NamedTuple):
    """How busy a host is, in percent; None = not told."""

    cpu_percent: float | None = None
    memory_percent: float | None = None
    disk_percent: float | None = None


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as placing needs it. `open_to` None = every tenant, else the row ids of those that may
    use it, by name or by shared group (TEN-09). `engines` are names; `ports` the host port numbers that
    attempts hold, and those that something else of the machine listens on. `last_seen_at` by the server's
    clock. `reachable`: the gateway gets through to engines there; False for a door that is closed or was
    not dialled yet (AGENT-16). `volume_prefixes` and `host_ipc`: None = not told. `inference_cap`: how many
    inference containers it takes (SCHED-06)."""

    id: int
    public_id: str
    name: str
    runtime: str
    cordoned: bool
    open_to: frozenset[int] | None
    engines: frozenset[str]
    port_first: int
    port_last: int
    ports: frozenset[int]
    last_seen_at: datetime | None
    reachable: bool
    cards: tuple[CardRow, ...]
    load: LoadRow
    labels: dict[str, str]
    volume_prefixes: tuple[str, ...] | None
    host_ipc: bool | None
    images: frozenset[str]
    inference_cap: int


def silent_before(now: datetime) -> datetime:
    """Nodes last heard of before this moment are silent (NODE_SILENT_S, by the server's receive time)."""
    return now - timedelta(seconds=settings.NODE_SILENT_S)


def is_online(last_seen_at: datetime | None, now: datetime) -> bool:
    """Whether a node was heard of and is not silent."""
    return last_seen_at is not None and last_seen_at >= silent_before(now)


def has_door(dial: Any) -> bool:
    """Whether a node is reached through its door; all others are dialled directly (AGENT-16)."""
    return isinstance(dial, dict) and dial.get("kind") == "door"


def doors_due(now: datetime) -> list[DoorRow]:
    """Doors of online nodes that were never dialled, or not within half of DOOR_CHECK_PERIOD_S, so
    that a run which comes a little early leaves none for the next one. Those not known first, then
    those open, then those closed: they take longest."""
    recently = now - timedelta(seconds=settings.DOOR_CHECK_PERIOD_S / 2)
    due = Q(liveness__door_checked_at__isnull=True) | Q(liveness__door_checked_at__lte=recently)
    rows = (
        Node.objects.filter(due, dial__kind="door", liveness__last_seen_at__gte=silent_before(now))
        .order_by("pk")
        .values_list("pk", "dial", "secret_sha256", "liveness__door_skew_s", "liveness__door_state")
    )
    turn = {DoorState.UNKNOWN.value: 0, DoorState.OPEN.value: 1}
    return [DoorRow(*row[:4]) for row in sorted(rows, key=lambda row: turn.get(row[4], 2))]


def nodes_open_to(*tenant_ids: int) -> QuerySet[Node]:
    """The nodes that at least one of these tenants (row ids) may use: open to all, or listed by name
    or by shared group (TEN-09)."""
    if not tenant_ids:
        return Node.objects.none()
    listed = Q(allowed_tenants__in=tenant_ids) | Q(allowed_groups__tenants__in=tenant_ids)
    # By subquery: the joins of the lists would give a node once per match.
    return Node.objects.filter(Q(open_to_all=True) | Q(pk__in=Node.objects.filter(listed).values("pk")))


def nodes(viewer: Viewer) -> QuerySet[Node]:
    """The nodes that a viewer may see: all for an operator, else those open to their tenants."""
    if viewer.is_operator:
        return Node.objects.all()
    return nodes_open_to(*viewer.roles)


def is_without_cards(viewer: Viewer) -> bool:
    """Whether the viewer has nodes to use, and none of them a card: engines run on processors there."""
    mine = nodes(viewer)
    return mine.exists() and not Card.objects.filter(node__in=mine, present=True).exists()


def node_by_id(viewer: Viewer, public_id: str) -> Node:
    """One node in sight. Raises NotFound."""
    if not looks_like_id(public_id):
        raise NotFound
    found = nodes(viewer).select_related("liveness").filter(public_id=public_id).first()
    if found is None:
        raise NotFound
    return found


def card_kinds(tenant_id: int) -> set[tuple[tuple[str, str, int | None, str, int], ...]]:
    """What the nodes with cards that a tenant may use are like, each kind once: by card (vendor, model, MB in
    all, compute capability, how many). Nodes that are silent too: their cards come back with them."""
    rows = (
        Card.objects.filter(present=True, node__in=nodes_open_to(tenant_id))
        .order_by("node_id", "vendor", "model", "vram_total_mb", "compute_capability")
        .values_list("node_id", "vendor", "model", "vram_total_mb", "compute_capability")
        .annotate(count=Count("pk"))
    )
    found: dict[int, list[tuple[str, str, int | None, str, int]]] = defaultdict(list)
    for node_id, *card in rows:
        found[node_id].append(tuple(card))
    return {tuple(cards) for cards in found.values()}


def inference_cap(own: int | None, cards: int) -> int:
    """How many inference containers a node takes (SCHED-06): what operators said, else INFERENCE_CAP_PER_GPU
    for each card that is there; a node without cards takes as many as one with one."""
    return settings.INFERENCE_CAP_PER_GPU * max(1, cards) if own is None else own


def nodes_with_models(paths: Iterable[str]) -> dict[int, frozenset[str]]:
    """Which of these models lie on which nodes (row ids), as far as nodes tell."""
    found: dict[int, set[str]] = defaultdict(set)
    for node_id, path in ModelFile.objects.filter(path__in=set(paths)).values_list("node_id", "path"):
        found[node_id].add(path)
    return {node_id: frozenset(lies) for node_id, lies in found.items()}


def placement_rows() -> list[NodeRow]:
    """All nodes with cards, last measured values, held ports and allow lists, as plain values.

    Six statements whatever the size of the fleet; no model instances. Nodes by name, cards by index. A node
    whose row can not be read is left out, and logged: it stops no other (RECOV-05).
    """
    cards = _cards_by_node()
    ports: dict[int, set[int]] = defaultdict(set)
    for node_id, number in Port.objects.values_list("node_id", "number"):
        ports[node_id].add(number)
    allowed: dict[int, set[int]] = defaultdict(set)
    for path in ("allowed_tenants", "allowed_groups__tenants"):
        listed = Node.objects.filter(open_to_all=False, **{f"{path}__isnull": False})
        for node_id, tenant_id in listed.values_list("pk", path):
            allowed[node_id].add(tenant_id)
    told = as_text("foreign_ports")
    heard_of = Liveness.objects.annotate(**told).values_list("node_id", "last_seen_at", "door_state", *told)
    seen = {node_id: heard for node_id, *heard in heard_of}
    rows = []
    texts = as_text(*_JSON)
    for row in Node.objects.annotate(**texts).order_by("name", "pk").values(*_READ, *_PLAIN, *texts):
        pk = row["pk"]
        allow = None if row["open_to_all"] else frozenset(allowed.get(pk, ()))
        try:
            rows.append(
                _node_row(row, allow, ports.get(pk, set()), seen.get(pk, _NEVER), tuple(cards.get(pk, ())))
            )
        except (AttributeError, TypeError, ValueError):
            log.exception("node row %s can not be read; nothing is placed there, the others go on", pk)
    return rows


def _node_row(
    row: Mapping[str, Any],
    open_to: frozenset[int] | None,
    ports: Collection[int],
    heard: Collection[Any],
    cards: tuple[CardRow, ...],
) -> NodeRow:
    last_seen_at, door, foreign_ports = heard
    return NodeRow(
        id=row["pk"],
        open_to=open_to,
        engines=_engine_names(row["engines_text"]),
        ports=_shaped(foreign_ports, frozenset[int]).union(ports),
        last_seen_at=last_seen_at,
        reachable=not has_door(parsed(row["dial_text"])) or door == DoorState.OPEN,
        cards=cards,
        load=LoadRow(*(row[f"sample__{name}"] for name in LoadRow._fields)),
        volume_prefixes=_shaped(row["volume_prefixes_text"], tuple[str, ...]),
        labels=_shaped(row["labels_text"], dict[str, Any]),
        images=_shaped(row["images_text"], frozenset[str]),
        inference_cap=inference_cap(row["inference_cap"], sum(card.present for card in cards)),
        **{name: row[name] for name in _PLAIN},
    )


_NEVER: tuple[Any, ...] = (None, DoorState.UNKNOWN, "[]")
_PLAIN = ("public_id", "name", "runtime", "cordoned", "port_first", "port_last", "host_ipc")
_JSON = ("dial", "engines", "images", "labels", "volume_prefixes")
_READ = ("pk", "open_to_all", "inference_cap", *(f"sample__{name}" for name in LoadRow._fields))


def _cards_by_node() -> dict[int, list[CardRow]]:
    found: dict[int, list[CardRow]] = defaultdict(list)
    cards = Card.objects.annotate(owned_text=Cast("sample__owned_mb", TextField()))
    rows: QuerySet[Card, tuple[Any, ...]] = cards.order_by("node_id", "index").values_list(
        "node_id",
        "pk",
        "index",
        "vendor",
        "model",
        "vram_total_mb",
        "sample__vram_used_mb",
        "compute_capability",
        "present",
        "quarantined_at",
        "sample__foreign_mb",
        "sample__foreign",
        "link_group",
        "pcie_root",
        "owned_text",
    )
    for node_id, *values in rows:
        values[-1] = _owned(values[0], values[-1])
        found[node_id].append(CardRow(*values))
    return found


@lru_cache(maxsize=1024)
def _engine_names(text: str) -> frozenset[str]:
    rows = parsed(text)
    return frozenset(str(row["name"]) for row in rows if isinstance(row, dict) and row.get("name"))


@lru_cache(maxsize=4096)
def _shaped(text: str | None, shape: Any) -> Any:
    """What a JSON text says, where it is of that shape; None where there is none. Raises ValueError."""
    return None if text is None else msgspec.json.decode(text, type=shape)


_OWNED = msgspec.json.Decoder(dict[str, int | None] | None)


def _owned(card_id: int, text: str | None) -> dict[str, int | None] | None:
    try:
        return _OWNED.decode(text or "null")
    except ValueError:
        log.exception("what attempts hold of card row %s can not be read: it counts as not told", card_id)
        return None
