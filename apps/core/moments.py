"""PostgreSQL's moments, read by Python's own parser: the driver's takes ten times as long, and a read of many
rows has thousands of them.
"""

from datetime import UTC, datetime
from typing import Any

from psycopg.types.datetime import TimestamptzLoader


class Moments(TimestamptzLoader):
    """As the driver's, in UTC."""

    timezone = UTC  # Django compares it with the connection's

    def load(self, data: Any) -> datetime:
        try:
            moment = datetime.fromisoformat(str(data, "ascii"))
        except ValueError:  # before year 1, after 9999
            return super().load(data)
        return moment if moment.tzinfo is UTC else super().load(data).astimezone(UTC)


def read_in_utc(connection: Any) -> None:
    """Let a connection of Django to PostgreSQL that speaks UTC read moments so."""
    if connection.timezone is UTC:
        connection.connection.adapters.register_loader("timestamptz", Moments)
