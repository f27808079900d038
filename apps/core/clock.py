"""The one place that reads the wall clock; decisions take `now` as an argument."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The present moment, aware, in UTC."""
    return datetime.now(UTC)
