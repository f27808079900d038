"""The published table: all that the gateway needs to answer a call, as plain values.

Owns the shapes only (no Django, no I/O): `published.py` fills them from rows, the gateway reads
them. A key with an unknown hash is simply absent; a revoked or deleted key is never listed.
"""

import msgspec

INFERENCE = "inference"  # a key's scopes: call models,
MODELS = "models"  # read the list of those that it may call,
PIN = "pin"  # and choose the version or the backend of its calls itself, for testers (GW-03)
DEFAULT_SCOPES = frozenset({INFERENCE, MODELS})


class Door(msgspec.Struct, frozen=True):
    """A node's one TLS port (AGENT-16). `certificate_sha256`: 64 hex digits; `key` signs the line
    that opens it, is a secret, and is never shown. `skew_s`: the node's clock less ours, by which the line
    is dated."""

    host: str
    port: int
    certificate_sha256: str
    key: bytes
    skew_s: float = 0.0

    def __repr__(self) -> str:
        return f"Door({self.host}:{self.port})"


class Replica(msgspec.Struct, frozen=True):
    """One ready replica. `engine_key` is a secret (AGENT-17), sent upstream only. With a `door` it is
    reached through that alone; `host` and `port` are its own otherwise.

    An `external` engine (GW-19) is no task of ours: `task_id` is its own public id, `attempt` the revision of
    its address. With `tls` it is asked by HTTPS under the system's authorities, `path_prefix` stands before a
    call's path ("" or "/some/path"), and its host may have a private address only with `private_ok`."""

    task_id: str
    attempt: int
    host: str
    port: int
    engine: str
    served_model_name: str  # what the engine calls the model; "" = ask its /v1/models
    engine_key: str = ""
    door: Door | None = None
    external: bool = False
    tls: bool = False
    path_prefix: str = ""
    private_ok: bool = False


class Route(msgspec.Struct, frozen=True):
    """One active route of a model name; lowest priority number first, then by weight (GW-03). `dozing`: a
    replica of it has just left the routes to sleep, and is called back if somebody wants it (SLEEP-06).
    `asleep`: it serves nobody until a person wakes it.
    `sticky`: by what a session's calls stay together (GW-06): "" (nothing), "header", "user" or "key"."""

    route_id: str
    group_id: str
    priority: int
    weight: int
    version: str
    balancing: str
    replicas: tuple[Replica, ...] = ()
    dozing: bool = False
    asleep: bool = False
    sticky: str = ""


class Key(msgspec.Struct, frozen=True):
    """One live key (TEN-06). `expires_at` in epoch seconds; `allowed_models` None = all of the
    tenant's; `suspended` holds the tenant's reason while the tenant is suspended, else None.
    `allowed_networks`: CIDR texts, None = from anywhere. `scopes`: what it may do, of the words above."""

    key_id: str
    prefix: str
    tenant_id: str
    tenant_slug: str
    member: str
    expires_at: float | None = None
    allowed_models: frozenset[str] | None = None
    suspended: str | None = None
    allowed_networks: tuple[str, ...] | None = None
    scopes: frozenset[str] = DEFAULT_SCOPES


class Table(msgspec.Struct, frozen=True):
    """One whole version. `keys` by sha256 hex of the key; `routes` by tenant id, then model name
    (routes sorted by priority). A model without a usable route keeps an empty entry, so that
    "known but no backend" (503) is told from "unknown" (404)."""

    version: int
    keys: dict[str, Key]
    routes: dict[str, dict[str, tuple[Route, ...]]]
