"""Reads of usage, scope first: what a viewer's tenants, or the viewer alone, asked of the gateway.

Rows hold names and public ids instead of foreign keys (they outlive what they name), so the scope is
applied to those. Sums are `sums.py`'s; limits and budgets are not decided here.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from django.db.models import Model, Q, QuerySet

from apps.tenants.models import Role, Tenant
from apps.tenants.scope import READS_ALL, Viewer
from apps.usage.models import UsageFile, UsageRecord
from apps.usage.record import UsageEntry

M = TypeVar("M", bound=Model)


def records(viewer: Viewer) -> QuerySet[UsageRecord]:
    """Usage rows that the viewer may read."""
    return in_sight(viewer, UsageRecord.objects.all())


def in_sight(viewer: Viewer, rows: QuerySet[M]) -> QuerySet[M]:
    """Of rows with `tenant_id` and `member`: all of a tenant for those who read all of it, else their own."""
    if viewer.is_operator:
        return rows
    whole = _public_ids(viewer, READS_ALL)
    own = _public_ids(viewer, frozenset({Role.MEMBER}))
    return rows.filter(Q(tenant_id__in=whole) | Q(tenant_id__in=own, member=viewer.name))


def _public_ids(viewer: Viewer, roles: frozenset[Role]) -> list[str]:
    wanted = viewer.tenants_with(roles)
    return list(Tenant.objects.filter(pk__in=wanted).values_list("public_id", flat=True))


def oldest_waiting(folder: Path) -> datetime | None:
    """When the oldest call began that stands in this host's usage files and is no row yet; None where all
    are. One statement; a line that can't be read is the flusher's business and passed over."""
    oldest: float | None = None
    offsets = dict(UsageFile.objects.values_list("name", "offset"))
    for path in folder.glob("usage-*.jsonl") if folder.is_dir() else ():
        try:
            with path.open("rb") as lines:
                lines.seek(offsets.get(path.name, 0))
                line = lines.readline()
            began = msgspec.json.decode(line, type=UsageEntry).started_at if line.endswith(b"\n") else None
        except (FileNotFoundError, msgspec.DecodeError):
            continue
        if began is not None and (oldest is None or began < oldest):
            oldest = began
    return None if oldest is None else datetime.fromtimestamp(oldest, UTC)
