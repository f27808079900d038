"""The one place that reads the wall clock, and what a loop knows of its own past; decisions take `now` as an
argument."""

from datetime import UTC, datetime, timedelta


def utc_now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)


def listening_since(
    previous_start: datetime | None, previous_since: datetime | None, now: datetime, *, gap_s: float
) -> datetime:
    """Since when a loop has been running without a gap: a process that was away, or stood still,
    begins anew."""
    if previous_start is None or previous_since is None:
        return now
    if previous_start > now or now - previous_start > timedelta(seconds=gap_s):
        return now
    return previous_since
