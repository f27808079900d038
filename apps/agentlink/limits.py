"""Limits of what agents may send beyond the types of the contract: lengths, ranges, characters.

Pure. A breach names the field, the value and the rule; nothing here says who may send it.
"""

from apps.core.bodies import show
from apps.core.errors import FieldError, Invalid

LARGEST_ATTEMPT = 2**31 - 1
MOST_REPORTS = 1000  # in one message; an agent sends a tenth of that, and each costs several statements


def check_attempt(attempt: int) -> None:
    """Raises Invalid."""
    if not 0 <= attempt <= LARGEST_ATTEMPT:
        raise Invalid(
            [FieldError("attempt", "out_of_range", show(attempt), {"min": 0, "max": LARGEST_ATTEMPT})]
        )


def check_count(field: str, count: int, most: int) -> None:
    """Raises Invalid where a list is longer than `most`."""
    if count > most:
        raise Invalid([FieldError(field, "out_of_range", str(count), {"min": 0, "max": most})])


def storable(text: str) -> str:
    """The text without NUL, which PostgreSQL keeps in no text."""
    return text.replace("\0", "?")
