"""The days that are asked about: whole days of UTC, both included, the last thirty where nothing is said."""

from datetime import date, timedelta

from apps.core.errors import FieldError, Invalid, Value

LONGEST_DAYS = 366
USUAL_DAYS = 30


def settle_days(first: date | None, last: date | None, today: date) -> tuple[date, date]:
    """(first, last). Raises Invalid for days in the wrong order, or too many."""
    last = last or today
    earliest = date.min + timedelta(days=LONGEST_DAYS)
    first = first or max(last, earliest) - timedelta(days=USUAL_DAYS - 1)
    if not 0 <= (last - first).days < LONGEST_DAYS:
        bounds: dict[str, Value] = {
            "min": (max(last, earliest) - timedelta(days=LONGEST_DAYS - 1)).isoformat(),
            "max": last.isoformat(),
        }
        raise Invalid([FieldError("from", "out_of_range", first.isoformat(), bounds)])
    return first, last
