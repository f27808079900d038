"""Messages between server and agent, contract version 2 (AGENT-01, -02; docs/contract.md).

Owns their shapes. Paths: POST /agent/v1/{join,heartbeat,claims,reports,logs,file-answers}, and the raw
bytes of a file to /agent/v1/files; the websocket /ws/agent only ever says "look now" (Look). Every field
that may be unknown is None, never zero. Unknown fields are ignored on decoding, so either side may be one
version ahead (OPS-11).
"""

from __future__ import annotations

import msgspec

from agent.contract.codes import Reason
from agent.contract.machine import CardHolder as CardHolder
from agent.contract.machine import CardReport as CardReport
from agent.contract.machine import EngineReport as EngineReport
from agent.contract.machine import HostReport as HostReport
from agent.contract.states import Desired, FileKind, Observed, Phase, RuntimeKind, TaskType

CONTRACT_VERSION = 2
CONTRACT_HEADER = "X-HeteroFlow-Contract"
PORT_RANGE = (20000, 20999)  # of host ports for tasks, where a node says no other


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
    `sent_at` is the node's clock in epoch seconds: lines to its door are dated by it.
    `volume_prefixes`: folders that it mounts from (AGENT-05). `host_ipc`: whether an engine of several cards
    gets the host's IPC (AGENT-06). `images`: engines' images that lie there, by name:tag. None = not told.
    `runtime_silent`: what runs containers does not answer. Of a run that has not spoken yet this is all that
    it says: what runs is not known to it, so it does not count as heard."""

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
    port_range: tuple[int, int] = PORT_RANGE
    ports_in_use: list[int] = []
    agent_version: str = ""
    volume_prefixes: list[str] | None = None
    host_ipc: bool | None = None
    images: list[str] | None = None
    runtime_silent: bool = False


class PortMapping(msgspec.Struct):
    """`movable`: nobody asked for this host port, so another may be had for it (see ClaimRequest)."""

    container_port: int
    host_port: int
    movable: bool = False


class HealthCheck(msgspec.Struct):
    """AGENT-08. `start_period_seconds` counts from the real start of the container or process."""

    type: str = "http"  # http, tcp, none, engine: http that knows the engine's own ways
    path: str = "/health"
    port: int = 0  # container port; 0 = the first mapped one
    interval_seconds: float = 10
    timeout_seconds: float = 3
    unhealthy_threshold: int = 3
    start_period_seconds: float = 60


class SleepOrder(msgspec.Struct, frozen=True):
    """Put an engine to sleep (SLEEP-01): let running requests end (none for `settle_seconds`, or at the
    latest after `drain_seconds`), ask the engine itself where it can (`level` as vLLM numbers them), stop its
    container and keep it. The routes were closed before. `quiet`: no gateway has a request of it any more,
    so that an engine that does not say what it has in work is waited for no longer than `settle_seconds`."""

    drain_seconds: float
    settle_seconds: float
    level: int = 2
    quiet: bool = False


class DesiredTask(msgspec.Struct):
    """One attempt that the server wants in the state `desired` on this node. No secret stands
    here: those come with the claim only. With `sleep`, `stop` means: stopped and kept. An agent that
    does not know the field removes the container, which costs a new one at the wake (SLEEP-03)."""

    task_id: str
    attempt: int
    desired: Desired
    stop_grace_seconds: float = 10
    sleep: SleepOrder | None = None


class FileOrder(msgspec.Struct):
    """Somebody asks for a file or folder of a task (AGENT-12); listed until it is answered. `volumes` and
    `model_path` are the task's own: only what they mount may be read, by the node's own rules (AGENT-05).
    A download goes on at `offset` in pieces of at most `chunk_bytes`; `version` names the file that the
    bytes before it came from ("" where there are none)."""

    request_id: str
    kind: FileKind
    path: str
    volumes: list[str]
    model_path: str
    chunk_bytes: int
    offset: int = 0
    version: str = ""


class HeartbeatReply(msgspec.Struct, tag="desired"):
    """The whole list of this node. `complete` False (a partial list) removes nothing."""

    desired_hash: str
    complete: bool
    tasks: list[DesiredTask]
    file_orders: list[FileOrder] = []
    released_cards: list[str] = []  # UUIDs whose quarantine an operator has ended, until it is over


class HeartbeatUnchanged(msgspec.Struct, tag="unchanged"):
    """The agent's list is current; counts as a complete answer."""

    desired_hash: str
    file_orders: list[FileOrder] = []
    released_cards: list[str] = []


HeartbeatAnswer = HeartbeatReply | HeartbeatUnchanged


# --- claims ---------------------------------------------------------------------------------------


class ClaimRequest(msgspec.Struct, tag="claim"):
    """May be repeated by the same run. `busy_ports` are ports of this attempt that something else of the
    node held until the agent gave up on them: those that are movable come back as others (AGENT-07)."""

    incarnation: str
    task_id: str
    attempt: int
    busy_ports: list[int] = []


class PipelineStage(msgspec.Struct, frozen=True):
    """Which part of a pipeline an attempt is (PAR-03). `rank` 0 is the head, the only one that serves; of
    `stages` in all, on `world_size` cards together. They meet at `master_host`:`master_port`, on the head's
    node; `host` is where the other nodes reach this one."""

    rank: int
    stages: int
    world_size: int
    master_host: str
    master_port: int
    host: str


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
    # Opens the engine's own sleep routes where it has them, for the agent alone (AGENT-04, -17).
    sleep_enabled: bool = False
    # With it, the container has the host's network and IPC, and listens at its host ports itself (AGENT-06).
    # An agent that does not know the field is given none: it tells no `host_ipc`.
    stage: PipelineStage | None = None


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
    # What was done otherwise than asked, such as a sleep call that the engine does not know.
    notes: list[Reason] = []


class ReportRequest(msgspec.Struct, tag="reports"):
    incarnation: str
    reports: list[TaskReport]


class ReportReply(msgspec.Struct, tag="received"):
    up_to_sequence: int


# --- logs -----------------------------------------------------------------------------------------


class LogRequest(msgspec.Struct, tag="log"):
    """A piece of one attempt's log. `offset` is its first byte's place in the whole log (bytes of
    UTF-8), so that a repeated or overlapping piece is recognised and none is doubled. `lost_from`: all
    from there to `offset` is lost for good, and `text` is the line that says so; it counts where the
    server has everything before `lost_from` and nothing behind. None = nothing is lost."""

    incarnation: str
    task_id: str
    attempt: int
    offset: int
    text: str
    lost_from: int | None = None


class LogReply(msgspec.Struct, tag="logged"):
    next_offset: int


# --- files ----------------------------------------------------------------------------------------


class FileEntry(msgspec.Struct):
    """One name in a folder. `kind`: file, folder, link or other; `size` in bytes, of files only."""

    name: str
    kind: str
    size: int | None = None
    modified_at: float | None = None


class FileAnswer(msgspec.Struct, tag="file"):
    """What became of a FileOrder, other than a file's bytes: a folder's entries (`more`: some were left
    out), or the reason why there is nothing. May be repeated."""

    incarnation: str
    request_id: str
    entries: list[FileEntry] = []
    more: bool = False
    reason: Reason | None = None


class FileReply(msgspec.Struct, tag="filed"):
    """The answer to a piece, and to a FileAnswer: where the next piece begins, and whether all is there."""

    next_offset: int
    done: bool = False


# --- errors and hints -----------------------------------------------------------------------------


class AgentError(msgspec.Struct, tag="error"):
    """Any refusal by the server; HTTP status 400, 401, 403, 409 or 426."""

    code: str
    detail: str


class Look(msgspec.Struct, tag="look"):
    """Websocket, server to agent: something changed, send a heartbeat now."""
