"""Moments of PostgreSQL are read as the driver reads them, whatever they look like."""

from datetime import UTC

import pytest
from psycopg import DataError
from psycopg.types.datetime import TimestamptzLoader

from apps.core.moments import Moments

OID = 1184  # timestamptz


@pytest.mark.parametrize(
    "text",
    [
        b"2026-11-30 12:10:25+00",
        b"2026-11-30 12:10:25.5+00",
        b"2026-11-30 12:10:25.000001+00",
        b"2026-11-30 12:10:25.123456+02",
        b"2026-11-30 23:59:59.9-05:30",
        b"1883-11-18 12:03:58+00:53:28",
        b"0001-01-01 00:00:00+00",
        b"9999-12-31 23:59:59.999999+00",
    ],
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_it_is_the_drivers_moment_in_utc(text: bytes, kind: type) -> None:
    moment = Moments(OID).load(kind(text))
    assert moment == TimestamptzLoader(OID).load(text) and moment.tzinfo is UTC


@pytest.mark.parametrize("text", [b"infinity", b"0044-03-15 12:00:00+00 BC", b"10000-01-01 00:00:00+00"])
def test_what_python_has_no_moment_for_is_refused_as_by_the_driver(text: bytes) -> None:
    with pytest.raises(DataError):
        Moments(OID).load(text)
