"""What the scheduler knows when it decides: plain values, read once (SCHED-14).

Owns the shapes only. Memory in MB (2**20 bytes). None always means "not known", never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agent.contract.messages import PORT_RANGE
from agent.contract.states import RuntimeKind, TaskType


@dataclass(frozen=True, slots=True)
class CardHold:
    """A live claim on a card. `percent` None = the card alone."""

    tenant_id: int
    percent: int | None
    inference: bool


@dataclass(frozen=True, slots=True)
class CardView:
    """One present card. `used_mb` is measured and includes our own engines and strangers. `quarantined`:
    memory of an ended attempt is held there."""

    id: int
    index: int
    vendor: str
    model: str
    vram_total_mb: int | None
    used_mb: int | None
    holds: tuple[CardHold, ...] = ()
    compute_capability: str | None = None
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `open_to` None = all tenants, else the row ids of those that may use it (TEN-09).
    `siblings` counts live tasks here by group row id; `ports` are the host ports held. `reachable`:
    the gateway gets through to engines there (AGENT-16)."""

    id: int
    public_id: str
    name: str
    online: bool
    cordoned: bool
    runtime: RuntimeKind | None
    engines: frozenset[str]
    open_to: frozenset[int] | None
    cards: tuple[CardView, ...]
    port_first: int = PORT_RANGE[0]
    port_last: int = PORT_RANGE[1]
    ports: frozenset[int] = frozenset()
    reachable: bool = True
    siblings: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskView:
    """One waiting task. `memory_mb` is the estimate over all its cards together; `percent` the
    promise on its one card; `ports` are (container port, host port or 0 for any); `refused_by`: nodes (public
    ids) that refused to start it."""

    id: int
    public_id: str
    version: int
    tenant_id: int
    group_id: int
    priority: int
    created_at: datetime
    task_type: TaskType
    gpu_required: int
    gpu_type: str = ""
    memory_mb: int | None = None
    percent: int | None = None
    engine: str = ""
    has_command: bool = False
    ports: tuple[tuple[int, int], ...] = ()
    attempt: int = 0
    not_before: datetime | None = None
    refused_by: frozenset[str] = frozenset()

    @property
    def whole_cards(self) -> bool:
        """It takes cards with nothing on them: no promise made, more than one card (SCHED-07), or
        work that is not inference (SCHED-08)."""
        return self.percent is None or self.gpu_required > 1 or self.task_type != TaskType.INFERENCE


@dataclass(frozen=True, slots=True)
class Reserve:
    """What is kept free on each card (SCHED-04): fixed MB and a share of its total."""

    fixed_mb: int = 500
    ratio: float = 0.10


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision rests on. `shared` maps a tenant to the others it may share a card
    with (SCHED-09; absent = none); `suspended` holds the reasons of suspended tenants (TEN-01);
    `weights` the weight of each score plugin by name (absent = 1)."""

    tasks: tuple[TaskView, ...]
    nodes: tuple[NodeView, ...]
    shared: Mapping[int, frozenset[int]] = field(default_factory=dict)
    suspended: Mapping[int, str] = field(default_factory=dict)
    reserve: Reserve = Reserve()
    weights: Mapping[str, float] = field(default_factory=dict)

    def may_share(self, first: int, second: int) -> bool:
        """Whether two tenants (row ids) may stand on one card; fails closed."""
        return first == second or second in self.shared.get(first, ())
