"""Messages between server and agent, contract version 1 (AGENT-01, -02; docs/contract.md).

Owns their shapes. Paths: POST /agent/v1/{join,heartbeat,claims,reports,logs}; the websocket
/ws/agent only ever says "look now" (Look). Every field that may be unknown is None, never zero.
Unknown fields are ignored on decoding, so either side may be one version ahead (OPS-11).
"""

from __future__ import annotations

import msgspec

from agent.contract.codes import Reason
from agent.contract.states import Desired, Observed, Phase, RuntimeKind, TaskType

CONTRACT_VERSION = 1
CONTRACT_HEADER = "X-HeteroFlow-Contract"


# --- join -----------------------------------------------------------------------------------------


class JoinRequest(msgspec.Struct, tag="join"):
    """Redeems a one-time token. The agent made its own secret and sends only the hash of it, so a
    repeated join after a lost answer (same token, same hash) gives the same node."""

    token: str
    secret_sha256: str  # 64 hex digits
    machine_id: str
    hostname: str
    agent_version: str
    contract_version: int = CONTRACT_VERSION


class JoinReply(msgspec.Struct, tag="joined"):
    node_id: str
    name: str
    contract_version: int = CONTRACT_VERSION


# --- heartbeat ------------------------------------------------------------------------------------


class CardReport(msgspec.Struct):
    """One accelerator card. Memory in MB (2**20 bytes); None where the card did not answer."""

    uuid: str
    index: int
    vendor: str
    model: str
    vram_total_mb: int | None = None
    vram_used_mb: int | None = None
    temperature_c: int | None = None
    utilization_percent: int | None = None
    driver_version: str | None = None
    compute_capability: str | None = None
    mig_capable: bool = False
    mps_capable: bool = False


class HostReport(msgspec.Struct):
    cpu_count: int
    memory_total_mb: int
    memory_available_mb: int | None = None
    cpu_percent: float | None = None
    disk_used_percent: float | None = None


class EngineReport(msgspec.Struct):
    """An engine this node can run now; `version` None when it could not be read."""

    name: str
    version: str | None = None
    image: str | None = None


class RunningReport(msgspec.Struct):
    """One container or process of ours that exists on the node."""

    task_id: str
    attempt: int
    observed: Observed
    host_ports: list[int] = []


class DialTarget(msgspec.Struct, tag_field="kind", tag="direct"):
    """Where the gateway reaches this node's engines: `direct` dials host:port of the task itself
    (embedded profile only)."""

    host: str


class DoorTarget(msgspec.Struct, tag_field="kind", tag="door"):
    """Where the gateway reaches this node's engines through its one TLS data port (AGENT-16)."""

    host: str
    port: int
    certificate_sha256: str


class HeartbeatRequest(msgspec.Struct, tag="heartbeat"):
    """Sent every 5 s. `incarnation` names this run of the agent (newest wins); `sequence` rises
    within it; `desired_hash` is of the desired list that the agent holds ("" for none).
    `sent_at` is the node's clock in epoch seconds, for the skew warning only."""

    incarnation: str
    started_at: float
    sequence: int
    desired_hash: str
    sent_at: float
    machine_id: str
    runtime: RuntimeKind
    host: HostReport
    dial: DialTarget | DoorTarget
    cards: list[CardReport] = []
    # True: the driver does not answer now. `cards` then holds the last ones known, without measured
    # values, and a card that is missing from it has not vanished.
    cards_unknown: bool = False
    engines: list[EngineReport] = []
    running: list[RunningReport] = []
    port_range: tuple[int, int] = (20000, 20999)
    ports_in_use: list[int] = []
    agent_version: str = ""


class PortMapping(msgspec.Struct):
    container_port: int
    host_port: int


class HealthCheck(msgspec.Struct):
    """AGENT-08. `start_period_seconds` counts from the real start of the container or process."""

    type: str = "http"  # http, tcp, none
    path: str = "/health"
    port: int = 0  # container port; 0 = the first mapped one
    interval_seconds: float = 10
    timeout_seconds: float = 3
    unhealthy_threshold: int = 3
    start_period_seconds: float = 60


class DesiredTask(msgspec.Struct):
    """One attempt that the server wants in the state `desired` on this node. No secret stands
    here: those come with the claim only."""

    task_id: str
    attempt: int
    desired: Desired
    stop_grace_seconds: float = 10


class HeartbeatReply(msgspec.Struct, tag="desired"):
    """The whole list of this node. `complete` False (a partial list) removes nothing."""

    desired_hash: str
    complete: bool
    tasks: list[DesiredTask]


class HeartbeatUnchanged(msgspec.Struct, tag="unchanged"):
    """The agent's list is current; counts as a complete answer."""

    desired_hash: str


HeartbeatAnswer = HeartbeatReply | HeartbeatUnchanged


# --- claims ---------------------------------------------------------------------------------------


class ClaimRequest(msgspec.Struct, tag="claim"):
    incarnation: str
    task_id: str
    attempt: int


class TaskSpec(msgspec.Struct):
    """All that an agent needs to start one attempt. Given only to the node that holds the claim.
    `env` and `engine_key` may hold secrets: never logged, never on a command line or on disk."""

    task_id: str
    attempt: int
    task_type: TaskType
    image: str
    engine: str  # "" for none (a plain container)
    served_model_name: str
    model_path: str
    ports: list[PortMapping]
    health_check: HealthCheck
    gpu_uuids: list[str] = []
    gpu_vendor: str = ""
    memory_percent: int | None = None  # promise on its card; None = the card alone
    env: dict[str, str] = {}
    volumes: list[str] = []
    command: list[str] = []
    tensor_parallel: int = 1
    timeout_seconds: int | None = None
    engine_key: str = ""
    pull_credentials: dict[str, str] | None = None


class ClaimGranted(msgspec.Struct, tag="granted"):
    spec: TaskSpec


class ClaimRefused(msgspec.Struct, tag="refused"):
    reason: Reason


ClaimAnswer = ClaimGranted | ClaimRefused


# --- reports --------------------------------------------------------------------------------------


class TaskReport(msgspec.Struct):
    """What happened to one attempt. `sequence` rises within an incarnation; the server ignores
    older ones and those of an older incarnation, and answers a repeated one like the first.
    `exit_code` is None while it runs or where it could not be read."""

    sequence: int
    task_id: str
    attempt: int
    phase: Phase
    observed: Observed
    reason: Reason | None = None
    exit_code: int | None = None
    last_log_lines: list[str] = []
    happened_at: float = 0.0


class ReportRequest(msgspec.Struct, tag="reports"):
    incarnation: str
    reports: list[TaskReport]


class ReportReply(msgspec.Struct, tag="received"):
    up_to_sequence: int


# --- logs -----------------------------------------------------------------------------------------


class LogRequest(msgspec.Struct, tag="log"):
    """A piece of one attempt's log. `offset` is its first byte's place in the whole log (bytes of
    UTF-8), so that a repeated or overlapping piece is recognised and none is doubled."""

    incarnation: str
    task_id: str
    attempt: int
    offset: int
    text: str


class LogReply(msgspec.Struct, tag="logged"):
    next_offset: int


# --- errors and hints -----------------------------------------------------------------------------


class AgentError(msgspec.Struct, tag="error"):
    """Any refusal by the server; HTTP status 400, 401, 403, 409 or 426."""

    code: str
    detail: str


class Look(msgspec.Struct, tag="look"):
    """Websocket, server to agent: something changed, send a heartbeat now."""
