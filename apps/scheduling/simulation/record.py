"""What happened in a replay, as it happened. Owns the shapes only; times in seconds of the replay."""

from dataclasses import dataclass, field
from enum import StrEnum

from agent.contract.codes import Reason
from apps.scheduling.policy.snapshot import TaskView
from apps.scheduling.simulation.occupancy import Stand
from apps.scheduling.simulation.workload import Item


class Ended(StrEnum):
    """Why a task left a node."""

    STANDS = "stands"
    FINISHED = "finished"
    PREEMPTED = "preempted"
    LOAN_ENDED = "loan_ended"
    NODE_LOST = "node_lost"


@dataclass(slots=True)
class Stay:
    """One placement, and how it ended; `wait_s` since it began to wait for it."""

    stand: Stand
    wait_s: float
    ended: Ended = Ended.STANDS
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Eviction:
    """Room that was made for a task."""

    at_s: float
    task: Item
    node: int
    cards: tuple[int, ...]
    victims: tuple[Item, ...]


@dataclass(slots=True)
class Waiting:
    """A task that waits, since when, and why no node takes it."""

    item: Item
    view: TaskView
    since_s: float
    reasons: list[Reason] = field(default_factory=list)


@dataclass(slots=True)
class Refusal:
    """A reason: whom it ever held up, and the first time with its numbers."""

    at_s: float
    task: Item
    reason: Reason
    tasks: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Moment:
    """How it stood from this second on."""

    at_s: float
    cards: float
    memory_mb: float
    waiting: int


@dataclass(slots=True)
class Record:
    """What happened until `until_s`. `wakes`: seconds from being asked until awake, of sleepers whose cards
    were lent."""

    until_s: float = 0.0
    decisions: int = 0
    stays: list[Stay] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)
    waiting: dict[int, Waiting] = field(default_factory=dict)
