"""The working copy of nodes and cards: what is left after each tentative placement.

Owns the arithmetic of SCHED-04 and SCHED-05. Never refuses anything: filters do.
"""

from collections import Counter
from copy import copy

from agent.contract.states import TaskType
from apps.scheduling.policy.snapshot import CardHold, CardView, NodeView, Reserve, TaskView


class CardRoom:
    """One card and what is promised on it by now. Change `holds` through `add` and `set` only.

    `promised_percent`: sum of the promises, a claim that has the card alone counts 100.
    `largest_promise`: the largest one that the commitment still allows, in percent (SCHED-05).
    `unpromised_mb`: total less the larger of what is promised and what is measured, so that a
    stranger's memory counts and our own engine's is not counted twice; None = not known.
    `free_mb`: that less the fixed and the relative reserve (SCHED-04); None = not known.
    """

    __slots__ = (
        "_reserve",
        "free_mb",
        "holds",
        "largest_promise",
        "promised_percent",
        "unpromised_mb",
        "view",
    )

    def __init__(self, view: CardView, reserve: Reserve) -> None:
        self.view = view
        self.holds: list[CardHold] = list(view.holds)
        self._reserve = reserve
        self._reckon()

    def add(self, hold: CardHold) -> None:
        """Book one more claim."""
        self.set([*self.holds, hold])

    def set(self, holds: list[CardHold]) -> None:
        """Hold this and nothing else."""
        self.holds = holds
        self._reckon()

    def copy(self) -> "CardRoom":
        """The same, to be changed apart."""
        return copy(self)  # `holds` is never changed in place

    def _reckon(self) -> None:
        reserve, total, used = self._reserve, self.view.vram_total_mb, self.view.used_mb
        promised = sum(
            100 if hold.percent is None else hold.percent for hold in self.holds if not hold.borrowed
        )
        self.promised_percent = promised
        self.largest_promise = max(0, 100 - round(reserve.ratio * 100) - promised)
        self.unpromised_mb: int | None = None
        self.free_mb: int | None = None
        if total is not None and used is not None:
            self.unpromised_mb = total - max(min(total, total * promised // 100), used)
            self.free_mb = max(0, self.unpromised_mb - reserve.fixed_mb - int(total * reserve.ratio))


class NodeRoom:
    """One node and what is left of it. `place` is its place in the order of ties."""

    __slots__ = ("cards", "place", "ports", "siblings", "tasks", "version", "view")

    def __init__(self, view: NodeView, place: int, reserve: Reserve) -> None:
        self.view = view
        self.place = place
        self.cards = [CardRoom(card, reserve) for card in view.cards]
        self.ports = set(view.ports)
        self.siblings: Counter[int] = Counter(view.siblings)
        self.tasks = sum(view.siblings.values())
        self.version = 0

    def copy(self) -> "NodeRoom":
        """The same, to be changed apart."""
        other = copy(self)
        other.cards = [card.copy() for card in self.cards]
        other.ports = set(self.ports)
        other.siblings = Counter(self.siblings)
        return other

    def take(
        self, task: TaskView, cards: list[CardRoom], *, borrowed: bool = False
    ) -> tuple[tuple[int, int], ...]:
        """Book a task that passed every filter; answers its (container port, host port)s."""
        for card in cards:
            card.add(
                CardHold(
                    task.tenant_id,
                    None if task.whole_cards else task.percent,
                    task.task_type == TaskType.INFERENCE,
                    task_id=task.id,
                    priority=task.priority,
                    borrowed=borrowed,
                )
            )
        ports = self._take_ports(task)
        self.siblings[task.group_id] += 1
        self.tasks += 1
        self.version += 1
        return ports

    def _take_ports(self, task: TaskView) -> tuple[tuple[int, int], ...]:
        self.ports.update(host for _, host in task.ports if host)
        first, count = self.view.port_first, self.view.port_last - self.view.port_first + 1
        # Each attempt begins elsewhere in the range: a port that something else on the machine holds
        # does not meet every rebuild.
        step = (task.id * 7 + task.attempt * 61) % max(1, count)
        chosen = []
        for container, host in task.ports:
            if not host:
                while first + step in self.ports:
                    step = (step + 1) % count
                host = first + step
                self.ports.add(host)
            chosen.append((container, host))
        return tuple(chosen)
