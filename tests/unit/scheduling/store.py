"""Rows in memory with the guarantees of the real store: what a transaction writes appears at once or not at
all, a locked row stays locked until its end, and every statement reads what is committed by then.

Transactions are generators: between two of their steps anybody else may run, or they may die for good.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from agent.contract.states import TaskType
from apps.scheduling.policy.plan import Placed, Preemption
from apps.scheduling.policy.snapshot import CardHold, Snapshot, TaskView
from apps.workloads.policy.room import Asked, HeldCard, HeldNode, Ledger, Share
from tests.unit.scheduling.worlds import NOW

Steps = Generator[None, None, None]


class Clash(Exception):
    """Something of a slice does not hold any more; nothing of it was written."""


class LeaseLost(Exception):
    """Another one has taken over."""


@dataclass(frozen=True)
class Lease:
    name: str
    holder: str
    fence: int


@dataclass
class Row:
    """A task. `state`: to come, pending, placed, evicted (its claim is still held), ended."""

    view: TaskView
    state: str = "pending"
    version: int = 0
    sleeping: bool = False
    lends: bool = False
    evicted: int = 0


@dataclass
class Claim:
    """Room that an attempt of a task holds until its agent says that it is gone."""

    number: int
    task_id: int
    attempt: int
    node_id: int
    cards: tuple[int, ...]
    percent: int | None
    ports: tuple[int, ...]
    borrowed: bool = False
    live: bool = True
    groups: dict[int, frozenset[int]] = field(default_factory=dict)  # who shared when it was checked


@dataclass
class Store:
    """The committed rows. `shared` is by tenant, as in a snapshot; `pasts` are all it has been."""

    base: Snapshot
    tasks: dict[int, Row] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    kept: dict[int, Preemption] = field(default_factory=dict)
    loans: dict[tuple[int, int], int] = field(default_factory=dict)  # (card, lender) -> borrower
    leases: dict[str, tuple[str, int]] = field(default_factory=dict)
    locks: dict[Any, Any] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)  # by lease, the fence of the latest write
    told: Counter[str] = field(default_factory=Counter)
    pasts: list[dict[int, frozenset[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = {view.id: Row(view) for view in self.base.tasks}
        self.pasts.append(dict(self.base.shared))
        self.views = {card.id: card for node in self.base.nodes for card in node.cards}

    # --- reads ------------------------------------------------------------------------------------

    @property
    def shared(self) -> dict[int, frozenset[int]]:
        return self.pasts[-1]

    def live(self, card: int | None = None) -> list[Claim]:
        return [one for one in self.claims if one.live and (card is None or card in one.cards)]

    def hold(self, claim: Claim) -> CardHold:
        row = self.tasks[claim.task_id]
        lends = row.sleeping and row.lends and not any(lender == claim.task_id for _, lender in self.loans)
        return CardHold(
            row.view.tenant_id,
            claim.percent,
            self.is_inference(claim.task_id),
            task_id=claim.task_id,
            priority=row.view.priority,
            preemptible=row.view.preemptible and not row.evicted and row.state == "placed",
            since=NOW + timedelta(seconds=claim.number),
            sleeping=row.sleeping,
            lendable=lends,
            borrowed=claim.borrowed,
            leaving=row.state == "evicted",
            gang=row.view.gang,
        )

    def kept_hold(self, kept: Preemption) -> CardHold:
        view = self.tasks[kept.task_id].view
        inference = self.is_inference(view.id)
        return CardHold(view.tenant_id, kept.percent, inference, priority=view.priority, reserved_for=view.id)

    def key(self) -> Any:
        """What a snapshot depends on."""
        return (
            tuple((one.task_id, one.cards, one.ports) for one in self.claims if one.live),
            tuple((number, row.version, row.state, row.sleeping) for number, row in self.tasks.items()),
            tuple(self.kept.values()),
            tuple(self.loans.items()),
            tuple(sorted(self.shared.items())),
        )

    def snapshot(self) -> Snapshot:
        live = self.live()
        nodes = []
        for node in self.base.nodes:
            here = [one for one in live if one.node_id == node.id]
            cards = tuple(
                replace(
                    card,
                    holds=tuple(self.hold(one) for one in here if card.id in one.cards)
                    + tuple(self.kept_hold(kept) for kept in self.kept.values() if card.id in kept.cards),
                )
                for card in node.cards
            )
            tenants = frozenset(self.tasks[one.task_id].view.tenant_id for one in here)
            wide = frozenset(
                self.tasks[one.task_id].view.tenant_id for one in here if self.is_wide(one.task_id, node.id)
            )
            ports = frozenset(port for one in here for port in one.ports)
            count = sum(self.is_inference(one.task_id) for one in here)
            nodes.append(
                replace(
                    node,
                    cards=cards,
                    tenants=tenants,
                    host_wide=wide,
                    ports=ports,
                    inference_count=count,
                )
            )
        waiting = tuple(
            replace(row.view, version=row.version) for row in self.tasks.values() if row.state == "pending"
        )
        return replace(self.base, tasks=waiting, nodes=tuple(nodes), shared=dict(self.shared))

    def is_inference(self, task_id: int) -> bool:
        return self.tasks[task_id].view.task_type == TaskType.INFERENCE

    def is_wide(self, task_id: int, node_id: int) -> bool:
        """Whether the task has the host's network or IPC there (SCHED-09)."""
        view = self.tasks[task_id].view
        node = next(one for one in self.base.nodes if one.id == node_id)
        several = view.gpu_required > 1 and view.task_type == TaskType.INFERENCE
        return view.host_network or (several and node.host_ipc is not False)


class Transaction:
    """Locks and writes of one transaction; leaving it without `commit` writes nothing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._writes: list[Callable[[], None]] = []
        self._lease: Lease | None = None

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, *_: object) -> None:
        for key in [key for key, owner in self.store.locks.items() if owner is self]:
            del self.store.locks[key]

    def lock(self, kind: str, keys: Iterable[Any]) -> Steps:
        """Lock rows one after another, in order."""
        for key in sorted(set(keys)):
            while self.store.locks.get((kind, key), self) is not self:
                yield
            self.store.locks[kind, key] = self
            yield

    def holding(self, lease: Lease) -> Steps:
        """Only for the holder of the lease, and while it is."""
        yield from self.lock("lease", [lease.name])
        if self.store.leases[lease.name] != (lease.holder, lease.fence):
            raise LeaseLost
        self._lease = lease

    def write(self, change: Callable[[], None]) -> None:
        self._writes.append(change)

    def commit(self) -> None:
        if self._lease is not None:  # an older holder never writes after a newer one
            newest = self.store.written.get(self._lease.name, 0)
            assert self._lease.fence >= newest
            self.store.written[self._lease.name] = self._lease.fence
        for change in self._writes:
            change()


def claim_of(store: Store, placed: Placed, groups: dict[int, frozenset[int]]) -> Claim:
    return Claim(
        number=len(store.claims),
        task_id=placed.task_id,
        attempt=placed.version + 1,
        node_id=placed.node_id,
        cards=placed.cards,
        percent=placed.percent,
        ports=tuple(host for _, host in placed.host_ports),
        borrowed=placed.borrowed,
        groups=groups,
    )


def asked_of(store: Store, wanted: Placed | Preemption) -> Asked:
    """What the real check is asked."""
    view = store.tasks[wanted.task_id].view
    return Asked(
        view.id,
        view.tenant_id,
        wanted.node_id,
        wanted.cards,
        wanted.percent,
        inference=store.is_inference(view.id),
        counted=bool(view.ports),
        host_network=view.host_network,
        borrowed=isinstance(wanted, Placed) and wanted.borrowed,
    )


def open_books(store: Store, victims: Collection[int] | None = None) -> Ledger:
    """The real check over what is committed; with `victims` those and all who leave are left out."""
    live = [
        one
        for one in store.live()
        if victims is None or (one.task_id not in victims and store.tasks[one.task_id].state != "evicted")
    ]
    nodes = {}
    for node in store.base.nodes:
        here = [one.task_id for one in live if one.node_id == node.id]
        nodes[node.id] = HeldNode(
            host_ipc=node.host_ipc,
            tenants=frozenset(store.tasks[number].view.tenant_id for number in here),
            host_wide=frozenset(
                store.tasks[number].view.tenant_id for number in here if store.is_wide(number, node.id)
            ),
            inference=sum(store.is_inference(number) for number in here),
            inference_cap=node.inference_cap,
        )
    cards = {card.id: HeldCard(node.id) for node in store.base.nodes for card in node.cards}
    for claim in live:
        hold = store.hold(claim)
        for number in claim.cards:
            cards[number].shares.append(
                Share(
                    claim.task_id,
                    hold.tenant_id,
                    claim.percent,
                    inference=hold.inference,
                    lendable=hold.lendable,
                    borrowed=claim.borrowed,
                )
            )
    for kept in store.kept.values():
        for number in kept.cards:
            hold = store.kept_hold(kept)
            cards[number].shares.append(
                Share(kept.task_id, hold.tenant_id, kept.percent, inference=hold.inference, kept=True)
            )
    shared = store.shared
    return Ledger(nodes, cards, may_share=lambda one, other: other in shared.get(one, ()), limit_percent=90)
