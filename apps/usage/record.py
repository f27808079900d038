"""One usage record: what a single gateway request cost, as a plain value (GW-12).

Owns the shape only (no Django). Names are copied in, so that totals keep their labels after a key
or model is deleted. Written by the gateway before the last bytes of the answer are handed over.
"""

from enum import StrEnum

import msgspec


class Ending(StrEnum):
    """How a request ended; every request has exactly one (docs/usage.md)."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TRUNCATED = "upstream_truncated"
    NO_BACKEND = "no_backend"
    REFUSED = "refused"


class UsageEntry(msgspec.Struct, omit_defaults=True):
    """Tokens are integers; `estimated` marks those that the engine did not report itself.
    Times: `started_at` epoch seconds UTC, `ttft_ms` None when no content byte ever came."""

    request_id: str
    started_at: float
    path: str
    ending: Ending
    http_status: int
    tenant_id: str = ""
    tenant_slug: str = ""
    member: str = ""
    key_id: str = ""
    key_prefix: str = ""
    model: str = ""
    route_id: str = ""
    group_id: str = ""
    task_id: str = ""
    attempt: int = 0
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    ttft_ms: int | None = None
    duration_ms: int = 0
