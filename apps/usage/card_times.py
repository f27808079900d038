"""Reads of card time, scope first: who held how much of cards over some days (GW-18)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date

from django.db.models import Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from apps.tenants.scope import Viewer
from apps.usage.models import CardTime
from apps.usage.policy.cardtime import Kind
from apps.usage.selectors import in_sight
from apps.usage.tables import as_csv

_WHOSE = ("tenant_slug", "member", "task_type", "group_id", "group_name")
COLUMNS = ("day", *_WHOSE, "task_id", "attempt", "kind", "card_seconds")


@dataclass(frozen=True)
class GroupTime:
    """What one service or run held over the days that were asked for: seconds of a whole card."""

    tenant: str
    member: str
    task_type: str
    group_id: str
    group: str
    running_s: float
    sleeping_s: float
    lent_s: float


def card_times(viewer: Viewer, first: date, last: date) -> QuerySet[CardTime]:
    """Rows of [first, last] that the viewer may read, as usage rows are."""
    return in_sight(viewer, CardTime.objects.filter(day__gte=first, day__lte=last))


def time_by_group(viewer: Viewer, first: date, last: date) -> list[GroupTime]:
    """Sums of those days by group, most time first."""
    rows = card_times(viewer, first, last).order_by().values(*_WHOSE)
    sums = {kind: Coalesce(Sum("card_ms", filter=Q(kind=kind)), 0) for kind in Kind}
    found = [
        GroupTime(*(row[name] for name in _WHOSE), *(row[f"{kind}_ms"] / 1000 for kind in Kind))
        for row in rows.annotate(**{f"{kind}_ms": total for kind, total in sums.items()})
    ]
    return sorted(found, key=lambda one: (-(one.running_s + one.sleeping_s + one.lent_s), one.group_id))


def write_csv(rows: Iterable[CardTime]) -> Iterator[str]:
    """The lines of a table for spreadsheets: a head, then one line a day, attempt and kind."""
    return as_csv(COLUMNS, map(_row, rows))


def _row(row: CardTime) -> tuple[object, ...]:
    held = (row.task_id, row.attempt, row.kind, f"{row.card_ms / 1000:.3f}")
    return (row.day.isoformat(), *(getattr(row, name) for name in _WHOSE), *held)
