"""Fills the published table from rows: keys and their scopes here, routes and replicas in leading.py.

Owns the reading only, a fixed number of statements whatever the size. The table's shape is
`table.py`; who raises the version is whoever writes the rows.
"""

import msgspec
from django.db.models import Q

from apps.core import versions
from apps.routing.leading import load_routes
from apps.routing.table import Key, Table
from apps.tenants import selectors as people
from apps.tenants.models import ApiKey


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
    return Table(version=version, keys=keys, routes=load_routes())


def find_key(sha256_hex: str) -> Key | None:
    """One live key that may be newer than the table; None for an unknown or revoked one."""
    found = people.live_keys().filter(Q(sha256=sha256_hex) | Q(former_sha256=sha256_hex)).first()
    if found is None:
        return None
    built = _build_key(found)
    return built if found.sha256 == sha256_hex else _build_former(found, built)


def _build_key(key: ApiKey) -> Key:
    return Key(
        key_id=key.public_id,
        prefix=key.prefix,
        tenant_id=key.tenant.public_id,
        tenant_slug=key.tenant.slug,
        member=key.member.get_username(),
        expires_at=None if key.expires_at is None else key.expires_at.timestamp(),
        allowed_models=None if key.allowed_models is None else frozenset(key.allowed_models),
        suspended=key.tenant.suspension,
        allowed_networks=None if key.allowed_addresses is None else tuple(key.allowed_addresses),
        scopes=frozenset(key.scopes),
    )


def _build_former(key: ApiKey, built: Key) -> Key:
    """The value before the last rotation, with all that holds for the key, until the overlap is over."""
    until = 0.0 if key.former_until is None else key.former_until.timestamp()
    ends = until if built.expires_at is None else min(until, built.expires_at)
    return msgspec.structs.replace(built, prefix=key.former_prefix, expires_at=ends)
