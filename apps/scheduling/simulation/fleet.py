"""The machines of a fleet file as the scheduler sees nodes.

Owns the file's form and its rules. Numbers nodes and cards from 1 on in the order of the file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agent.contract.states import RuntimeKind
from apps.scheduling.policy.snapshot import CardView, NodeView
from apps.scheduling.simulation.files import (
    Amount,
    Count,
    Entry,
    Name,
    Percent,
    Span,
    read,
    require,
    require_spans,
)

LARGEST_FLEET = 200_000  # cards

CapOf = Callable[[int | None, int], int]


class Cards(Entry, frozen=True, kw_only=True):
    """`count` cards alike. `memory_mb` null = it does not tell. `foreign_mb` of it are held by `foreign`, a
    process of nobody's. `linked`: how many at a time are joined by NVLink or the like (0 = none)."""

    count: Count = 1
    vendor: Name
    model: Name
    memory_mb: Amount | None
    compute_capability: str | None = None
    foreign_mb: Amount = 0
    foreign: str = ""
    linked: Amount = 0


class Machines(Entry, frozen=True, kw_only=True):
    """`count` nodes alike, called name-1, name-2 and so on, or just name where it is one. `open_to` names
    tenants (null = all, or those of its pool); `offline` are spans of seconds in which it is not heard of."""

    name: Name
    count: Count = 1
    pool: str = ""
    cards: tuple[Cards, ...]
    open_to: tuple[Name, ...] | None = None
    runtime: RuntimeKind = RuntimeKind.DOCKER
    engines: tuple[Name, ...] = ()
    models: tuple[Name, ...] = ()
    images: tuple[Name, ...] = ()
    volume_prefixes: tuple[Name, ...] | None = ("/",)
    inference_cap: Amount | None = None
    cordoned: bool = False
    host_ipc: bool = False
    zone: str = ""
    rdma: bool = False
    cpu_percent: Percent = 0.0
    memory_percent: Percent = 0.0
    disk_percent: Percent = 0.0
    offline: tuple[Span, ...] = ()


class Pool(Entry, frozen=True, kw_only=True):
    """Nodes that belong together; `open_to` holds for those that name none of their own."""

    open_to: tuple[Name, ...] | None = None


class FleetFile(Entry, frozen=True, kw_only=True):
    """A fleet file."""

    about: str = ""
    pools: dict[str, Pool] = msgspec.field(default_factory=dict)
    nodes: tuple[Machines, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """One node: its view while nothing runs there, to whom it is open by name, and when it is silent."""

    view: NodeView
    pool: str
    open_to: tuple[str, ...] | None
    offline: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines by node row id less one, in the file's order."""

    about: str
    machines: tuple[Machine, ...]


def read_fleet(path: Path, cap_of: CapOf) -> Fleet:
    """Raises BadFile. `cap_of` answers how many inference containers a node takes (SCHED-06), from what its
    entry names (None = nothing) and its number of cards."""
    file = read(path, FleetFile)
    _check(path, file)
    machines: list[Machine] = []
    cards = 0
    for entry in file.nodes:
        pool = file.pools.get(entry.pool)
        open_to = entry.open_to if entry.open_to is not None or pool is None else pool.open_to
        for number in range(1, entry.count + 1):
            name = entry.name if entry.count == 1 else f"{entry.name}-{number}"
            view = _node(entry, name, len(machines) + 1, cards, cap_of)
            cards += len(view.cards)
            machines.append(Machine(view, entry.pool, open_to, entry.offline))
    return Fleet(file.about, tuple(machines))


def _check(path: Path, file: FleetFile) -> None:
    require(bool(file.nodes), path, "nodes", "there is none; name at least one")
    total, names = 0, set[str]()
    for place, entry in enumerate(file.nodes):
        field = f"nodes[{place}]"
        total += entry.count * sum(card.count for card in entry.cards)
        require(total <= LARGEST_FLEET, path, field, f"the fleet has more than {LARGEST_FLEET:,} cards")
        require(entry.name not in names, path, f"{field}.name", f"{entry.name!r} stands there twice")
        names.add(entry.name)
        require(
            not entry.pool or entry.pool in file.pools,
            path,
            f"{field}.pool",
            f"{entry.pool!r} is not among the pools ({', '.join(sorted(file.pools)) or 'there is none'})",
        )
        require_spans(path, f"{field}.offline", entry.offline)
        for number, card in enumerate(entry.cards):
            require(
                card.memory_mb is None or card.foreign_mb <= card.memory_mb,
                path,
                f"{field}.cards[{number}].foreign_mb",
                f"{card.foreign_mb} is more than its memory_mb, {card.memory_mb}",
            )


def _node(entry: Machines, name: str, row: int, cards_before: int, cap_of: CapOf) -> NodeView:
    cards: list[CardView] = []
    for kind in entry.cards:
        first = len(cards)
        for number in range(kind.count):
            cards.append(
                CardView(
                    id=cards_before + len(cards) + 1,
                    index=len(cards),
                    vendor=kind.vendor,
                    model=kind.model,
                    vram_total_mb=kind.memory_mb,
                    used_mb=None if kind.memory_mb is None else kind.foreign_mb,
                    compute_capability=kind.compute_capability,
                    foreign_mb=None if kind.memory_mb is None else kind.foreign_mb,
                    foreign=kind.foreign,
                    link_group=first + number // kind.linked * kind.linked if kind.linked else None,
                )
            )
    return NodeView(
        id=row,
        public_id=name,
        name=name,
        online=True,
        cordoned=entry.cordoned,
        runtime=entry.runtime,
        engines=frozenset(entry.engines),
        open_to=None,
        cards=tuple(cards),
        cpu_percent=entry.cpu_percent,
        memory_percent=entry.memory_percent,
        disk_percent=entry.disk_percent,
        volume_prefixes=entry.volume_prefixes,
        inference_cap=cap_of(entry.inference_cap, len(cards)),
        models=frozenset(entry.models),
        images=frozenset(entry.images),
        host_ipc=entry.host_ipc,
        zone=entry.zone,
        rdma=entry.rdma,
    )
