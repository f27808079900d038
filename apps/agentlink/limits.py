"""Limits of what agents may send beyond the types of the contract: lengths, ranges, characters.

Pure. A breach names the field, the value and the rule; nothing here says who may send it.
"""

from agent.contract.messages import HeartbeatRequest
from apps.core.errors import FieldError, Invalid

LONGEST_INCARNATION = 64
LARGEST_ATTEMPT = 2**31 - 1
LARGEST_SEQUENCE = 2**63 - 1


def check_incarnation(incarnation: str) -> None:
    """Raises Invalid for a blank or long one, or one with control characters."""
    if not incarnation.strip():
        raise Invalid([FieldError("incarnation", "blank")])
    if len(incarnation) > LONGEST_INCARNATION:
        raise Invalid([FieldError("incarnation", "too_long", None, {"max": LONGEST_INCARNATION})])
    if not incarnation.isprintable():
        raise Invalid([FieldError("incarnation", "bad_characters")])


def check_attempt(attempt: int) -> None:
    """Raises Invalid."""
    _check_range("attempt", attempt, LARGEST_ATTEMPT)


def check_heartbeat(request: HeartbeatRequest) -> None:
    """Raises Invalid for what would break rows; measured values are fleet's to judge."""
    check_incarnation(request.incarnation)
    _check_range("sequence", request.sequence, LARGEST_SEQUENCE)


def _check_range(field: str, value: int, largest: int) -> None:
    if not 0 <= value <= largest:
        shown = value if abs(value) < 2**53 else str(value)[:40]
        raise Invalid([FieldError(field, "out_of_range", shown, {"min": 0, "max": largest})])


def storable(text: str) -> str:
    """The text without NUL, which PostgreSQL keeps in no text."""
    return text.replace("\0", "?")
