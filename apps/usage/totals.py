"""Adds records up by hour and day, each exactly once, and lets old ones go.

One loop does it, so that no two writers meet on a sum. A record is marked in the transaction that counts it:
a run that was killed or overtaken has counted and marked nothing. Never changes what a record says.
"""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet

from apps.usage.models import Span, UsageRecord, UsageTotal
from apps.usage.record import Ending

PORTION = 500  # records in one transaction, which has to be over well within a lease
ALIKE = ("tenant_id", "tenant_slug", "member", "key_id", "key_prefix", "model", "group_id")
TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens", "duration_ms")
SUMMED = ("requests", "failed", "estimated", *TOKENS)

Kind = tuple[str, datetime, *tuple[str, ...]]


def add_up(most: int = PORTION) -> int:
    """Count up to `most` records that are in no sum yet, oldest row first; answers how many. Call inside a
    transaction that no other caller can have at the same time."""
    waiting = UsageRecord.objects.filter(totalled=False).order_by("pk")
    rows = list(waiting.values("pk", "started_at", "ending", "estimated", *ALIKE, *TOKENS)[:most])
    if not rows:
        return 0
    sums: dict[Kind, dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMMED, 0))
    for row in rows:
        for span, began_at in (
            (Span.HOUR.value, row["started_at"].replace(minute=0, second=0, microsecond=0)),
            (Span.DAY.value, row["started_at"].replace(hour=0, minute=0, second=0, microsecond=0)),
        ):
            found = sums[span, began_at, *(row[name] for name in ALIKE)]
            found["requests"] += 1
            found["failed"] += row["ending"] != Ending.COMPLETED
            found["estimated"] += row["estimated"]
            for name in TOKENS:
                found[name] += row[name]
    _store(sums)
    UsageRecord.objects.filter(pk__in=[row["pk"] for row in rows]).update(totalled=True)
    return len(rows)


def _store(sums: dict[Kind, dict[str, int]]) -> None:
    begun = {kind[1] for kind in sums}
    keys = {kind[2 + ALIKE.index("key_id")] for kind in sums}
    present = {
        _kind_of(total): total for total in UsageTotal.objects.filter(began_at__in=begun, key_id__in=keys)
    }
    grown = []
    for kind, more in sums.items():
        span, began_at, *alike = kind
        before = present.get(kind) or UsageTotal()
        counts = {name: getattr(before, name) + value for name, value in more.items()}
        grown.append(
            UsageTotal(span=span, began_at=began_at, **dict(zip(ALIKE, alike, strict=True)), **counts)
        )
    UsageTotal.objects.bulk_create(
        grown, update_conflicts=True, unique_fields=["span", "began_at", *ALIKE], update_fields=SUMMED
    )


def _kind_of(total: UsageTotal) -> Kind:
    return (total.span, total.began_at, *(getattr(total, name) for name in ALIKE))


def forget_records(now: datetime, *, keep_days: int, most: int = PORTION) -> int:
    """Delete up to `most` counted records that began before the last `keep_days` days; 0 keeps all."""
    if not keep_days:
        return 0
    old = UsageRecord.objects.filter(totalled=True, started_at__lt=now - timedelta(days=keep_days))
    return _delete(old.order_by("started_at"), most)


def forget_hours(now: datetime, *, keep_days: int, most: int = PORTION) -> int:
    """Delete up to `most` sums of hours before the last `keep_days` days; 0 keeps all."""
    if not keep_days:
        return 0
    old = UsageTotal.objects.filter(span=Span.HOUR, began_at__lt=now - timedelta(days=keep_days))
    return _delete(old.order_by("began_at"), most)


def _delete(rows: QuerySet[Any], most: int) -> int:
    ids = list(rows.values_list("pk", flat=True)[:most])
    return rows.model._default_manager.filter(pk__in=ids).delete()[0]
