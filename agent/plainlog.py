"""The agent's own log: one plain line an event on standard error.

Owns format and masking. Engines' logs are files of their own (`agent/runtime`, `agent/link/logship`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from agent.masking import MaskingFilter

MASKING = MaskingFilter()


class OneLine(logging.Formatter):
    """Keeps every record on one line, so that a line is an event: of an exception only its kind and
    its sentence are shown."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        record.exc_info = None
        record.exc_text = None
        line = super().format(record)
        if error is not None:
            line += f" ({type(error).__name__}: {MASKING.mask_text(str(error))})"
        return line.replace("\n", " | ")


class JsonLine(OneLine):
    """The same event as a JSON object, with the names that the server's log uses."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat()
        told = {
            "timestamp": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": super().format(record),
        }
        return json.dumps(told, ensure_ascii=False)


def set_up(level: str, *, as_json: bool = False) -> None:
    """Send the agent's log to standard error. Raises ValueError for an unknown level."""
    handler = logging.StreamHandler(sys.stderr)
    line = OneLine("%(asctime)s %(levelname)s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(JsonLine("%(message)s") if as_json else line)
    handler.addFilter(MASKING)
    root = logging.getLogger("agent")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level.upper())
