"""What a gateway process says of its calls, as plain values (no Django, no I/O).

Owns the shapes. One Load is one instant of one process: nothing of it may be read apart from the rest. A
process that serves a table never sends a new call to a replica that is not in it, so "it serves version 7
and has no call of the replica that left with version 7" stays true, however old the word is.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec


class TenantWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one tenant's calls have met at a backend, as a gateway process holds it. `state`: "closed" (takes
    calls), "passed_over" (while others can), "open" (gets none), "half_open" (one call tries it)."""

    state: str = "closed"
    failures: int = 0
    last_failure: str = ""


class BackendWord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one gateway process holds of one backend, for people to see (GW-08). `state`: the worst of its
    `tenants` (by id; an external engine may have several), `failures`: those of all of them, since it
    began. `hot_c`: its hottest card, where it is passed over for that. The engine's own `running`, `waiting`
    and `kv_use` (0 to 1) as told at `told_at` (epoch seconds), None = never told."""

    state: str = "closed"
    failures: int = 0
    last_failure: str = ""
    tenants: dict[str, TenantWord] = {}
    hot_c: int | None = None
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    told_at: float | None = None


def seen_by(word: BackendWord, tenant_id: str) -> BackendWord:
    """What holds for one tenant's calls, and nothing of what another's have met."""
    if not word.tenants:
        return word
    own = word.tenants.get(tenant_id, TenantWord())
    return msgspec.structs.replace(
        word,
        state=own.state,
        failures=own.failures,
        last_failure=own.last_failure,
        tenants={},
    )


class Load(msgspec.Struct, frozen=True):
    """`version`: the published table that it serves, 0 before its first. `in_flight`: calls at each replica,
    by task id. `held`: calls that wait for a replica that may be called back, by group id. `used`: when each
    group was last asked for, by group id, epoch seconds; what lies longer back is left out. `backends`: by
    task id, those of which there is anything to say."""

    version: int = 0
    in_flight: dict[str, int] = {}
    held: dict[str, int] = {}
    used: dict[str, float] = {}
    backends: dict[str, BackendWord] = {}


class Source(msgspec.Struct, frozen=True):
    """The last word of one gateway process. `left`: it ended in good order and has no call."""

    name: str
    said_at: datetime
    load: Load
    left: bool = False


def words_of(sources: list[Source], task_id: str, tenant_id: str | None = None) -> list[BackendWord]:
    """What the processes say of one backend, as far as they say anything of it. `tenant_id`: only what holds
    for that tenant's calls; None = for anybody's."""
    words = [word for source in sources if (word := source.load.backends.get(task_id)) is not None]
    return words if tenant_id is None else [seen_by(word, tenant_id) for word in words]


def is_quiet(sources: list[Source], task_id: str, version: int) -> bool:
    """Whether no gateway has, or can still get, a call of a replica that left the routes with `version`.
    Without any gateway nobody says so."""
    return bool(sources) and all(
        source.left or (source.load.version >= version and not source.load.in_flight.get(task_id))
        for source in sources
    )


def last_used(sources: list[Source]) -> Mapping[str, float]:
    """When each group was last asked for, as far as the sources say; epoch seconds."""
    latest: dict[str, float] = {}
    for source in sources:
        for group_id, at in source.load.used.items():
            latest[group_id] = max(at, latest.get(group_id, 0.0))
    return latest
