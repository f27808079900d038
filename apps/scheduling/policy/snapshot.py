"""What the scheduler knows when it decides: plain values, read once (SCHED-14).

Owns the shapes only. Memory in MB (2**20 bytes). None always means "not known", never zero.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from agent.contract.messages import PORT_RANGE
from agent.contract.states import RuntimeKind, TaskType
from apps.workloads.policy.room import in_percent


class CardHold(msgspec.Struct, frozen=True):
    """A live claim on a card, or room kept on it. `percent` None = the card alone.

    `task_id`, `priority`, `since` (of the claim) and `preemptible` tell whom it may be taken from; one that
    was evicted lately counts as not preemptible. `sleeping`: its task sleeps and keeps its promise.
    `lendable`: training may borrow it now (SHARE-04). `borrowed`: it is a borrower's, on a card that a
    sleeper has lent; it promises nothing of the commitment. `measured_mb`: what its own processes use on
    the card, None = not told. `reserved_for`: no claim but room kept for this waiting task (SCHED-11).
    `leaving`: its task was evicted or is being stopped, the room comes free by itself. Holds of one `gang`
    (as in TaskView) are evicted together.
    """

    tenant_id: int
    percent: int | None
    inference: bool
    task_id: int = 0
    priority: int = 0
    preemptible: bool = False
    since: datetime | None = None
    sleeping: bool = False
    lendable: bool = False
    borrowed: bool = False
    measured_mb: int | None = None
    reserved_for: int = 0
    leaving: bool = False
    gang: str = ""

    @property
    def promise(self) -> int:
        """Percent of the card that it promises: a borrower nothing, its lender's promise stands."""
        return 0 if self.borrowed else in_percent(self.percent)


class CardView(msgspec.Struct, frozen=True):
    """One present card. `used_mb` is measured and includes our own engines and strangers; `foreign_mb` is
    the part that belongs to no task of ours, `foreign` names the process that holds most of it; None = the
    driver does not tell whose it is. `quarantined`: memory of an ended attempt is held there. Cards of one
    `link_group` are joined by NVLink or the like, those of one `pcie_root` hang on one PCIe root."""

    id: int
    index: int
    vendor: str
    model: str
    vram_total_mb: int | None
    used_mb: int | None
    holds: tuple[CardHold, ...] = ()
    compute_capability: str | None = None
    quarantined: bool = False
    foreign_mb: int | None = None
    foreign: str = ""
    link_group: int | None = None
    pcie_root: str = ""


class NodeView(msgspec.Struct, frozen=True):
    """One node. `open_to` None = all tenants, else the row ids of those that may use it (TEN-09).
    `siblings` counts live tasks here by group row id; `ports` are the host ports held. `reachable`:
    the gateway gets through to engines there (AGENT-16).

    `cpu_percent`, `memory_percent`, `disk_percent` are measured, None = not told. `volume_prefixes`: folders
    that it mounts from (AGENT-05), None = not told. `inference_count`: live inference tasks with a port,
    sleeping ones too, of at most `inference_cap` (SCHED-06, -16). `models`: model paths that lie there.
    `images`: engine images that lie there. `tenants`: whose tasks live there; `host_wide`: whose there have
    the host's network or IPC (SCHED-09). `host_ipc`: an engine of several cards gets the host's IPC there
    (AGENT-06), None = not told, which counts as yes. `zone` and `rdma`: from its labels.
    """

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
    siblings: Mapping[int, int] = {}
    cpu_percent: float | None = None
    memory_percent: float | None = None
    disk_percent: float | None = None
    volume_prefixes: tuple[str, ...] | None = None
    inference_cap: int | None = None
    inference_count: int = 0
    models: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    tenants: frozenset[int] = frozenset()
    host_wide: frozenset[int] = frozenset()
    host_ipc: bool | None = None
    zone: str = ""
    rdma: bool = False


class TaskView(msgspec.Struct, frozen=True):
    """One waiting task. `memory_mb` is the estimate over all its cards together; `percent` the
    promise on its one card; `ports` are (container port, host port or 0 for any); `refused_by`: nodes (public
    ids) that refused to start it.

    `volumes` are host paths to be mounted. `counted`: it has a port definition, so that commitment and
    inference cap count it (SCHED-16). `host_network`: a pipeline or ring stage (AGENT-15). Tasks of one
    `gang` (the group's row id and generation; "" = none) are placed all or none; `gang_size` is how many
    they are, also where some are not in this snapshot. `may_borrow`: training that may use a sleeper's
    cards. `made_room_at`: when others were last evicted for it.
    """

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
    rank: int = 0
    image: str = ""
    model_path: str = ""
    volumes: tuple[str, ...] = ()
    counted: bool = True
    preemptible: bool = False
    host_network: bool = False
    gang: str = ""
    gang_size: int = 1
    may_borrow: bool = False
    made_room_at: datetime | None = None

    @property
    def whole_cards(self) -> bool:
        """It takes cards with nothing on them: no promise made, more than one card (SCHED-07), or
        work that is not inference (SCHED-08)."""
        return self.percent is None or self.gpu_required > 1 or self.task_type != TaskType.INFERENCE


class Reserve(msgspec.Struct, frozen=True):
    """What is kept free on each card (SCHED-04): fixed MB and a share of its total."""

    fixed_mb: int = 500
    ratio: float = 0.10

    @property
    def limit_percent(self) -> int:
        """How much of a card may be promised at most, in percent (SCHED-05)."""
        return 100 - round(self.ratio * 100)


class Thresholds(msgspec.Struct, frozen=True):
    """How much a node may be in use and still take work, in percent (SCHED-03)."""

    cpu: float = 90.0
    memory: float = 90.0
    disk: float = 90.0


class Snapshot(msgspec.Struct, frozen=True):
    """Everything that a decision rests on. `shared` maps a tenant to the others it may share a card
    with (SCHED-09; absent = none); `suspended` holds the reasons of suspended tenants (TEN-01);
    `weights` the weight of each score plugin by name (absent = 1). `fair_weights`: by tenant (absent = 1),
    where tenants are served by their dominant share (SCHED-17); None = first come first served. For one task
    others are evicted at most once in `preemption_pause_s` (SCHED-11)."""

    tasks: tuple[TaskView, ...]
    nodes: tuple[NodeView, ...]
    shared: Mapping[int, frozenset[int]] = {}
    suspended: Mapping[int, str] = {}
    reserve: Reserve = Reserve()
    weights: Mapping[str, float] = {}
    thresholds: Thresholds = Thresholds()
    fair_weights: Mapping[int, float] | None = None
    preemption_pause_s: float = 600.0

    def may_share(self, first: int, second: int) -> bool:
        """Whether two tenants (row ids) may stand on one card; fails closed."""
        return first == second or second in self.shared.get(first, ())

    def friends_of(self, tenant: int) -> frozenset[int]:
        """All that a tenant may stand on one card with, itself among them."""
        return self.shared.get(tenant, frozenset()) | {tenant}
