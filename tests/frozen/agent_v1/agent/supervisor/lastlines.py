"""The last lines of an engine's log, for the report of its end.

Owns the reading from the end and the masking. Never reads a whole log.
"""

from __future__ import annotations

import logging
from pathlib import Path

from agent.masking import mask, printable

log = logging.getLogger("agent.supervisor")
TAIL_BYTES = 16384
LINE_BYTES = 2000


def read_last_lines(file: Path, count: int, secrets: list[str]) -> list[str]:
    """The last lines, masked and cut to a length that a report can carry; [] without a log."""
    try:
        with file.open("rb") as source:
            size = source.seek(0, 2)
            source.seek(max(0, size - TAIL_BYTES))
            raw = source.read(TAIL_BYTES)
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("%s: the last lines cannot be read: %s", file.name, error.strerror)
        return []
    lines = mask(printable(raw), secrets).decode().splitlines()
    return [line[:LINE_BYTES] for line in lines[-count:]]
