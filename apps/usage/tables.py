"""Rows as tables for spreadsheets and programs, written as they come: CSV and JSON.

Owns the writing only; what stands in a row is `exports.py`'s and `card_times.py`'s.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A head, then one line a row. What is not known is empty, which is not 0."""
    yield _line(columns)
    for row in rows:
        yield _line(row)


def as_json(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """One array of objects. An answer that broke off is none: its bracket is missing."""
    before = "[\n"
    for row in rows:
        yield before + json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def _line(values: Iterable[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([_as_text(value) for value in values])
    return out.getvalue()


def _as_text(value: object) -> str:
    """A name that a spreadsheet would run as a formula is text."""
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(_BEGINS_A_FORMULA) else text
