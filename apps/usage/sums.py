"""What was used over some days, summed by what one asks for (GW-12): scope first, days of UTC.

Reads the sums that the loop keeps and, in the same statement, the records that are in none yet: a call counts
from the moment its record is a row, once, whenever one asks. Never reads what was let go.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import TruncDay, TruncHour

from apps.tenants.scope import Viewer
from apps.usage.models import Span, UsageRecord, UsageTotal
from apps.usage.record import Ending
from apps.usage.selectors import in_sight
from apps.usage.totals import ALIKE, SUMMED, TOKENS


class By(StrEnum):
    DAY = "day"
    HOUR = "hour"
    TENANT = "tenant"
    MEMBER = "member"
    KEY = "key"
    MODEL = "model"
    SERVICE = "service"


_COLUMNS = {
    By.TENANT: ("tenant_slug",),
    By.MEMBER: ("member",),
    By.KEY: ("key_id", "key_prefix"),
    By.MODEL: ("model",),
    By.SERVICE: ("group_id",),
}


@dataclass(frozen=True)
class Only:
    """What is left of it: of a tenant (slug), a member, a key (id), a model. Empty = all in sight."""

    tenant: str = ""
    member: str = ""
    key: str = ""
    model: str = ""

    def of(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        asked = {"tenant_slug": self.tenant, "member": self.member, "key_id": self.key, "model": self.model}
        return rows.filter(**{name: value for name, value in asked.items() if value})


@dataclass(frozen=True)
class Use:
    """One line. `value`: what it is the sum of; a moment as its beginning in ISO 8601, a key as its id and
    the beginning of the value that was used. `duration_ms`: of all requests together."""

    value: tuple[str, ...] = ()
    requests: int = 0
    failed: int = 0
    estimated: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    duration_ms: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def completed(self) -> int:
        return self.requests - self.failed


def bounds(first: date, last: date) -> tuple[datetime, datetime]:
    """[beginning of `first`, end of `last`)."""
    midnight = time(tzinfo=UTC)
    last = min(last, date.max - timedelta(days=1))  # the last day of all has no end that could be named
    return datetime.combine(first, midnight), datetime.combine(last, midnight) + timedelta(days=1)


def use_by(viewer: Viewer, first: date, last: date, by: By, only: Only = Only()) -> list[Use]:
    """Sums over [first, last]: moments in their order, anything else most tokens first. A moment without a
    call is left out. A call that named no usable model stands under what it sent, or under ""."""
    if by is By.HOUR:
        return _merge(_rows(viewer, first, last, only, Span.HOUR, moment=TruncHour))
    if by is By.DAY:
        return _merge(_rows(viewer, first, last, only, Span.DAY, moment=TruncDay))
    found = _merge(_rows(viewer, first, last, only, Span.DAY, columns=_COLUMNS[by]))
    return sorted(found, key=lambda use: (-use.tokens, -use.requests))


def each_day(viewer: Viewer, first: date, last: date, only: Only = Only()) -> Iterator[tuple[date, Use]]:
    """Every day's lines by all that records are alike in (`ALIKE`), a day at a time so that few are held."""
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        for use in _merge(_rows(viewer, day, day, only, Span.DAY, columns=ALIKE)):
            yield day, use


def add(uses: Iterable[Use]) -> Use:
    """All of them as one."""
    total = Use()
    for use in uses:
        total = _plus(total, use)
    return total


def _merge(rows: Iterable[tuple[Any, ...]]) -> list[Use]:
    """Rows that are the sum of the same become one; in the order of what they are the sum of."""
    merged: dict[tuple[str, ...], Use] = {}
    for row in rows:
        value = tuple(map(_as_text, row[: -len(SUMMED)]))
        use = Use(value, *map(int, row[-len(SUMMED) :]))
        merged[value] = _plus(merged[value], use) if value in merged else use
    return [merged[value] for value in sorted(merged)]


def _rows(
    viewer: Viewer,
    first: date,
    last: date,
    only: Only,
    span: Span,
    *,
    columns: tuple[str, ...] = (),
    moment: Any = None,
) -> QuerySet[Any]:
    """Tuples of `columns`, or of a moment where there is a `moment`, and what is SUMMED. The same ones may
    come twice: once of the kept sums and once of what is in none."""
    start, end = bounds(first, last)
    kept = UsageTotal.objects.filter(span=span, began_at__gte=start, began_at__lt=end)
    waiting = UsageRecord.objects.filter(totalled=False, started_at__gte=start, started_at__lt=end)
    fresh = {
        "requests": Count("pk"),
        "failed": Count("pk", filter=~Q(ending=Ending.COMPLETED)),
        "estimated": Count("pk", filter=Q(estimated=True)),
        **{name: Sum(name) for name in TOKENS},
    }
    began, started = (
        ({"moment": F("began_at")}, {"moment": moment("started_at", tzinfo=UTC)}) if moment else ({}, {})
    )
    return _grouped(only.of(in_sight(viewer, kept)), columns, began, {n: Sum(n) for n in SUMMED}).union(
        _grouped(only.of(in_sight(viewer, waiting)), columns, started, fresh), all=True
    )


def _grouped(
    rows: QuerySet[Any], columns: tuple[str, ...], moment: dict[str, Any], sums: dict[str, Any]
) -> QuerySet[Any]:
    groups = (*columns, *moment)
    named = {f"sum_{name}": expression for name, expression in sums.items()}
    return rows.order_by().annotate(**moment).values(*groups).annotate(**named).values_list(*groups, *named)


def _plus(one: Use, other: Use) -> Use:
    return Use(one.value, *(getattr(one, name) + getattr(other, name) for name in SUMMED))


def _as_text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else value
