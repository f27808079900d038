"""Fills the published table from rows: keys' scopes, routes, ready replicas.

Owns the reading only, a fixed number of statements whatever the size. The table's shape is
`table.py`; who raises the version is whoever writes the rows.
"""

import logging
from collections import defaultdict

import msgspec
from django.db.models import Q

from agent.contract.door import derive_key
from apps.core import versions
from apps.core.secrets import derive_engine_key
from apps.routing.models import ModelRoute
from apps.routing.table import Door, Key, Replica, Route, Table
from apps.tenants import selectors as people
from apps.tenants.models import ApiKey, TenantStatus
from apps.workloads import selectors as work
from apps.workloads.selectors import ReadyReplica

log = logging.getLogger("heteroflow.routing")


def read_version() -> int:
    """The present version of the table; 0 before anything was published."""
    return versions.read()


def load_table() -> Table:
    """The whole table. The version is read first, so that rows may be newer than it says, never older."""
    version = read_version()
    keys = {}
    for key in people.live_keys().iterator():
        keys[key.sha256] = built = _build_key(key)
        if key.former_sha256 is not None:
            keys[key.former_sha256] = _build_former(key, built)
    return Table(version=version, keys=keys, routes=_load_routes())


def find_key(sha256_hex: str) -> Key | None:
    """One live key that may be newer than the table; None for an unknown or revoked one."""
    found = people.live_keys().filter(Q(sha256=sha256_hex) | Q(former_sha256=sha256_hex)).first()
    if found is None:
        return None
    built = _build_key(found)
    return built if found.sha256 == sha256_hex else _build_former(found, built)


def _build_key(key: ApiKey) -> Key:
    suspended = key.tenant.status == TenantStatus.SUSPENDED
    return Key(
        key_id=key.public_id,
        prefix=key.prefix,
        tenant_id=key.tenant.public_id,
        tenant_slug=key.tenant.slug,
        member=key.member.get_username(),
        expires_at=None if key.expires_at is None else key.expires_at.timestamp(),
        allowed_models=None if key.allowed_models is None else frozenset(key.allowed_models),
        suspended=key.tenant.suspended_reason if suspended else None,
        allowed_networks=None if key.allowed_addresses is None else tuple(key.allowed_addresses),
        scopes=frozenset(key.scopes),
    )


def _build_former(key: ApiKey, built: Key) -> Key:
    """The value before the last rotation, with all that holds for the key, until the overlap is over."""
    until = 0.0 if key.former_until is None else key.former_until.timestamp()
    ends = until if built.expires_at is None else min(until, built.expires_at)
    return msgspec.structs.replace(built, prefix=key.former_prefix, expires_at=ends)


def _load_routes() -> dict[str, dict[str, tuple[Route, ...]]]:
    replicas: dict[int, list[Replica]] = defaultdict(list)
    for ready in work.ready_replicas():
        try:
            replica = _build_replica(ready)
        except (KeyError, TypeError, ValueError) as error:  # one bad row stops no other (RECOV-05)
            kind = type(error).__name__
            log.error("task %s is not published: its node's door can not be read (%s)", ready.task_id, kind)
            continue
        replicas[ready.group_id].append(replica)
    dozing = work.dozing_groups()
    found: dict[str, dict[str, list[Route]]] = defaultdict(dict)
    rows = ModelRoute.objects.filter(group__deleted_at__isnull=True).select_related("tenant", "group")
    for row in rows.order_by("priority", "pk"):
        # An inactive route leaves its model known: 503 and not 404.
        of_model = found[row.tenant.public_id].setdefault(row.model_name, [])
        if row.active:
            of_model.append(_build_route(row, replicas.get(row.group_id, []), row.group_id in dozing))
    return {
        tenant: {model: tuple(routes) for model, routes in models.items()} for tenant, models in found.items()
    }


def _build_route(row: ModelRoute, replicas: list[Replica], dozing: bool) -> Route:
    return Route(
        route_id=row.public_id,
        group_id=row.group.public_id,
        priority=row.priority,
        weight=row.weight,
        version=row.version,
        balancing=row.balancing,
        replicas=tuple(replicas),
        dozing=dozing,
    )


def _build_replica(ready: ReadyReplica) -> Replica:
    """Catalog engines are started under the group's model name; of anything else it is asked for."""
    return Replica(
        task_id=ready.task_id,
        attempt=ready.attempt,
        host=str(ready.dial.get("host", "")),
        port=ready.port,
        engine=ready.engine,
        served_model_name=ready.model_name if ready.engine else "",
        engine_key=derive_engine_key(ready.task_id, ready.attempt) if ready.engine else "",
        door=_build_door(ready) if ready.dial.get("kind") == "door" else None,
    )


def _build_door(ready: ReadyReplica) -> Door:
    """Raises KeyError, TypeError or ValueError for a row that names no usable door."""
    return Door(
        host=str(ready.dial["host"]),
        port=int(ready.dial["port"]),
        certificate_sha256=str(ready.dial["certificate_sha256"]),
        key=derive_key(ready.node_secret_sha256),
        skew_s=ready.node_skew_s,
    )
