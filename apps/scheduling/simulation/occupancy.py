"""What stands where at a moment of a replay, and how the scheduler sees it.

Owns claims, kept room and loans, and the views of nodes that follow from them: the same as the loader makes
of rows (`standing.py`). Decides nothing, moves no time. Memory in MB, times in seconds of the replay.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView
from apps.scheduling.simulation.fleet import Machine
from apps.scheduling.simulation.workload import Item, Tenant
from apps.workloads.policy.room import in_percent, is_host_wide


@dataclass(slots=True, eq=False)
class Stand:
    """One attempt of a task on a node. `percent` None = each card alone. `wakes`: it sleeps and was asked to
    wake at that moment. `leaving`: evicted or stopped, its room comes free by itself."""

    item: Item
    tenant: Tenant
    attempt: int
    node: int
    cards: tuple[int, ...]
    percent: int | None
    host_ports: tuple[int, ...]
    since_s: float
    borrowed: bool = False
    sleeping: bool = False
    wakes: float | None = None
    leaving: bool = False
    preemptible_from_s: float = 0.0

    @property
    def counted(self) -> bool:
        """Commitment and inference cap count it (SCHED-16)."""
        return bool(self.item.work.container_ports)

    @property
    def promise(self) -> int:
        """Percent of each card that others can not have; borrowers promise nothing, nor does what has no port
        (SCHED-16)."""
        if self.borrowed or (self.percent is not None and not self.counted):
            return 0
        return in_percent(self.percent)

    def is_host_wide(self, host_ipc: bool | None) -> bool:
        """Whether it has the host's network or IPC on a node that says this of IPC (SCHED-09)."""
        return is_host_wide(
            host_network=bool(self.item.gang),
            inference=self.item.work.serves,
            cards=len(self.cards),
            host_ipc=host_ipc,
        )


@dataclass(slots=True, eq=False)
class Loan:
    """A lender's card in a borrower's hands."""

    lender: Stand
    card: int
    borrower: Stand
    since_s: float
    until_s: float
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """Room kept for a waiting task (SCHED-11)."""

    item: Item
    tenant: Tenant
    node: int
    cards: tuple[int, ...]
    percent: int | None


@dataclass(slots=True)
class Gauge:
    """A value and what it was over time. `whole` is what it is out of."""

    whole: float
    value: float = 0.0
    total: float = 0.0  # value x seconds until `at_s`
    at_s: float = 0.0

    def change(self, by: float, at_s: float) -> None:
        self.total += self.value * (at_s - self.at_s)
        self.at_s = at_s
        self.value += by

    def mean_percent(self, until_s: float) -> float | None:
        """Mean share of the whole from 0 to then; None where there is no whole, or no time."""
        if not self.whole or not until_s:
            return None
        return 100 * (self.total + self.value * (until_s - self.at_s)) / until_s / self.whole


@dataclass(slots=True)
class Use:
    """How much of some cards is taken: cards by promises (a lent one is taken whole), memory as used."""

    cards: Gauge
    memory_mb: Gauge


@dataclass(slots=True)
class _Node:
    machine: Machine
    online: bool = True
    stands: list[Stand] = field(default_factory=list)
    kept: dict[int, Kept] = field(default_factory=dict)
    view: NodeView | None = None


class Occupancy:
    """All nodes of a fleet."""

    def __init__(self, machines: tuple[Machine, ...], tenants: dict[str, Tenant], start: datetime) -> None:
        self._start = start
        self._tenants = tenants
        self._nodes = {machine.view.id: _Node(machine) for machine in machines}
        self._cards = {card.id: card for machine in machines for card in machine.view.cards}
        self._on_card: dict[int, list[Stand]] = defaultdict(list)
        self._taken: dict[int, tuple[float, int]] = {}  # by card: (share of it, MB)
        self.loans: list[Loan] = []
        self._lent: dict[tuple[int, int], Loan] = {}  # live ones by (lender's item id, card)
        self.all = _use(self._cards.values())
        by_model: dict[str, list[CardView]] = defaultdict(list)
        by_pool: dict[str, list[CardView]] = defaultdict(list)
        self._pool: dict[int, str] = {}
        for machine in machines:
            for card in machine.view.cards:
                by_model[card.model].append(card)
                by_pool[machine.pool].append(card)
                self._pool[card.id] = machine.pool
        self.by_model = {model: _use(cards) for model, cards in sorted(by_model.items())}
        self.by_pool = {pool: _use(cards) for pool, cards in sorted(by_pool.items())}

    # --- changes ---

    def add(self, stand: Stand) -> None:
        """A claim is made."""
        node = self._nodes[stand.node]
        node.stands.append(stand)
        node.kept.pop(stand.item.id, None)
        for card in stand.cards:
            self._on_card[card].append(stand)
        self.changed(stand.node, stand.cards, stand.since_s)

    def remove(self, stand: Stand, at_s: float) -> None:
        """A claim is released."""
        self._nodes[stand.node].stands.remove(stand)
        for card in stand.cards:
            self._on_card[card].remove(stand)
        self.changed(stand.node, stand.cards, at_s)

    def lend(self, loan: Loan) -> None:
        """A loan is made."""
        self.loans.append(loan)
        self._lent[loan.lender.item.id, loan.card] = loan
        self.changed(loan.lender.node, (), loan.since_s)

    def end_loan(self, loan: Loan, at_s: float) -> None:
        """A loan is over."""
        loan.ended_s = at_s
        del self._lent[loan.lender.item.id, loan.card]
        self.changed(loan.lender.node, (), at_s)

    def keep(self, kept: Kept) -> None:
        """Room is kept."""
        self._nodes[kept.node].kept[kept.item.id] = kept
        self._nodes[kept.node].view = None

    def give_up(self, kept: Kept) -> None:
        """Room is kept no longer, unless for the same task once more."""
        if self._nodes[kept.node].kept.get(kept.item.id) is kept:
            del self._nodes[kept.node].kept[kept.item.id]
            self._nodes[kept.node].view = None

    def set_online(self, node: int, online: bool) -> None:
        """A node falls silent, or is heard of again."""
        self._nodes[node].online = online
        self._nodes[node].view = None

    def changed(self, node: int, cards: Iterable[int], at_s: float) -> None:
        """Something about the stands on these cards is other than before."""
        self._nodes[node].view = None
        for card in cards:
            share, memory_mb = self._share(card), self._memory_mb(card)
            old_share, old_mb = self._taken.get(card, (0.0, 0))
            self._taken[card] = share, memory_mb
            for use in (self.all, self.by_model[self._cards[card].model], self.by_pool[self._pool[card]]):
                use.cards.change(share - old_share, at_s)
                use.memory_mb.change(memory_mb - old_mb, at_s)

    # --- questions ---

    def on_node(self, node: int) -> list[Stand]:
        """What stands there."""
        return list(self._nodes[node].stands)

    def lenders(self, cards: Iterable[int]) -> Iterator[tuple[Stand, int]]:
        """Sleepers that would lend these cards, with the card."""
        for card in cards:
            for stand in self._on_card[card]:
                if self._lendable(stand, card):
                    yield stand, card

    def loans_of(self, stand: Stand) -> list[Loan]:
        """Live loans that it gave or took."""
        return [loan for loan in self._lent.values() if stand in (loan.lender, loan.borrower)]

    def card(self, card: int) -> CardView:
        """A card while nothing runs on it."""
        return self._cards[card]

    def name(self, node: int) -> str:
        """A node's name."""
        return self._nodes[node].machine.view.name

    def views(self, at_s: float) -> tuple[NodeView, ...]:
        """All nodes as they are now."""
        found = []
        for node in self._nodes.values():
            if node.view is None:
                node.view = self._view(node, at_s)
            found.append(node.view)
        return tuple(found)

    # --- views ---

    def _view(self, node: _Node, at_s: float) -> NodeView:
        base, stands = node.machine.view, node.stands
        open_to = node.machine.open_to
        wide = {stand.tenant.id for stand in stands if stand.is_host_wide(base.host_ipc)}
        return replace(
            base,
            online=node.online,
            open_to=None if open_to is None else frozenset(self._tenant_ids(open_to)),
            cards=tuple(self._card_view(card, node, at_s) for card in base.cards),
            ports=frozenset(port for stand in stands for port in stand.host_ports),
            siblings=Counter(stand.item.group for stand in stands),
            inference_count=sum(1 for stand in stands if stand.item.work.serves and stand.counted),
            tenants=frozenset(stand.tenant.id for stand in stands),
            host_wide=frozenset(wide),
        )

    def _tenant_ids(self, names: Iterable[str]) -> Iterator[int]:
        for name in names:
            if name in self._tenants:
                yield self._tenants[name].id

    def _card_view(self, card: CardView, node: _Node, at_s: float) -> CardView:
        stands = self._on_card.get(card.id, [])
        kept = [one for one in node.kept.values() if card.id in one.cards]
        if not stands and not kept:
            return card
        holds = [self._hold(stand, card, at_s) for stand in stands]
        holds += [_kept_hold(one) for one in kept]
        used = None if card.used_mb is None else card.used_mb + self._memory_mb(card.id)
        return replace(card, used_mb=used, holds=tuple(holds))

    def _hold(self, stand: Stand, card: CardView, at_s: float) -> CardHold:
        work = stand.item.work
        counted = stand.percent is None or stand.counted
        return CardHold(
            stand.tenant.id,
            stand.percent if counted else 0,
            work.serves,
            task_id=stand.item.id,
            priority=work.priority,
            preemptible=work.preemptible and not stand.leaving and stand.preemptible_from_s <= at_s,
            since=self._start + timedelta(seconds=stand.since_s),
            sleeping=stand.sleeping and not stand.leaving,
            lendable=self._lendable(stand, card.id),
            borrowed=stand.borrowed,
            measured_mb=None if card.vram_total_mb is None else _measured_mb(stand, card.vram_total_mb),
            leaving=stand.leaving,
            gang=stand.item.gang,
        )

    def _lendable(self, stand: Stand, card: int) -> bool:
        free = stand.sleeping and stand.wakes is None and not stand.leaving
        return (
            free and stand.item.work.lend and stand.tenant.lends and (stand.item.id, card) not in self._lent
        )

    def _share(self, card: int) -> float:
        stands = self._on_card[card]
        if any(stand.borrowed for stand in stands):
            return 1.0
        return min(100, sum(stand.promise for stand in stands)) / 100

    def _memory_mb(self, card: int) -> int:
        total = self._cards[card].vram_total_mb
        if total is None:
            return 0
        room = total - (self._cards[card].foreign_mb or 0)
        return min(room, sum(_measured_mb(stand, total) for stand in self._on_card[card]))


def _kept_hold(kept: Kept) -> CardHold:
    work = kept.item.work
    return CardHold(
        kept.tenant.id,
        kept.percent,
        work.serves,
        priority=work.priority,
        reserved_for=kept.item.id,
        gang=kept.item.gang,
    )


def _measured_mb(stand: Stand, total_mb: int) -> int:
    """What it uses of a card: its estimate, without one what it was promised; nothing while it sleeps."""
    if stand.sleeping:
        return 0
    if stand.item.work.memory_mb is not None:
        return -(-stand.item.work.memory_mb // max(1, len(stand.cards)))
    return total_mb * in_percent(stand.percent) // 100


def _use(cards: Iterable[CardView]) -> Use:
    some = list(cards)
    return Use(Gauge(float(len(some))), Gauge(float(sum(card.vram_total_mb or 0 for card in some))))
