"""Reads of usage, scope first: what a viewer's tenants, or the viewer alone, asked of the gateway.

Rows hold names and public ids instead of foreign keys (they outlive what they name), so the scope is
applied to those. Sums only; limits and budgets are not decided here.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from django.db.models import Count, Model, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from apps.tenants.models import Role, Tenant
from apps.tenants.scope import READS_ALL, Viewer
from apps.usage.models import UsageFile, UsageRecord
from apps.usage.record import Ending, UsageEntry

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class ModelUse:
    """What one model was asked for; `estimated` counts requests whose tokens the engine didn't report."""

    model: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    estimated: int


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


def use_by_model(viewer: Viewer, *, since: datetime, until: datetime) -> list[ModelUse]:
    """Requests and tokens by model of [since, until), most tokens first. A refused request that named
    no usable model is listed under the name it sent, or under "" when it sent none."""
    rows = (
        records(viewer)
        .filter(started_at__gte=since, started_at__lt=until)
        .order_by()
        .values("model")
        .annotate(
            requests=Count("pk"),
            failed=Count("pk", filter=~Q(ending=Ending.COMPLETED)),
            prompt=Coalesce(Sum("prompt_tokens"), 0),
            completion=Coalesce(Sum("completion_tokens"), 0),
            cached=Coalesce(Sum("cached_tokens"), 0),
            guessed=Count("pk", filter=Q(estimated=True)),
        )
    )
    uses = [
        ModelUse(
            model=row["model"],
            requests=row["requests"],
            failed=row["failed"],
            prompt_tokens=row["prompt"],
            completion_tokens=row["completion"],
            cached_tokens=row["cached"],
            estimated=row["guessed"],
        )
        for row in rows
    ]
    return sorted(uses, key=lambda use: (-(use.prompt_tokens + use.completion_tokens), use.model))


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
