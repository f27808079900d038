"""Values from the wire made fit for rows: a number that can not be is "no answer", never an error.

One card with a broken sensor must not take its node offline. Pure.
"""

from itertools import islice

_LARGEST = 2**31 - 1
# 16 TiB, more than any card has: placing reckons with hundredths of it, and with many together, in 32 bits.
_LARGEST_MB = 2**24


def count_or_none(value: int | None) -> int | None:
    """A count or size that a row can hold; None for no answer and for what can not be."""
    return value if value is not None and 0 <= value <= _LARGEST else None


def memory_or_none(value_mb: int | None) -> int | None:
    """Memory of a card in MB; None for no answer and for what no card has."""
    return value_mb if value_mb is not None and 0 <= value_mb <= _LARGEST_MB else None


def degrees_or_none(value: int | None) -> int | None:
    """A temperature that can be; None for no answer and for what can not be."""
    return value if value is not None and -273 <= value <= 1000 else None


def fit(text: str | None, longest: int) -> str:
    """A text cut to a column, without control characters."""
    return "".join(c for c in text or "" if c.isprintable())[:longest]


def percent_or_none(value: float | None) -> float | None:
    """A share in percent, to a tenth; None for no answer and for what can not be."""
    return round(value, 1) if value is not None and 0 <= value <= 100 else None


def storable_texts(texts: list[str], *, most: int, longest: int) -> list[str]:
    """At most so many of them, each once and in order, without those that are too long or hold what can not
    be shown: half a path or name would be another one."""
    fine = (text for text in texts if 0 < len(text) <= longest and text.isprintable())
    return sorted(set(islice(fine, most)))


def changed_enough(old_mb: int | None, new_mb: int | None, total_mb: int | None) -> bool:
    """Whether a memory reading is worth a write: by 1 % of the card or 64 MB, whichever is less, or
    between an answer and none."""
    if old_mb is None or new_mb is None:
        return old_mb is not new_mb
    threshold = min(64.0, total_mb / 100) if total_mb else 64.0
    return abs(new_mb - old_mb) >= max(threshold, 1.0)
