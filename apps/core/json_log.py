"""Log lines as JSON, one object a line, for what collects logs (LOG_FORMAT=json).

Owns the form. What is masked and which request a line belongs to is decided before, by the handler's
filters; the agent's own lines have the same names (`agent/plainlog.py`).
"""

import logging

import structlog
from structlog.typing import EventDict, WrappedLogger


def _add_request(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    request_id = getattr(record, "request_id", "-")
    if request_id != "-":
        event["request_id"] = request_id
    return event


def _add_fault(logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
    """The traceback as the masking filter left it, never one made anew from the exception."""
    record = event.get("_record")
    event.pop("exc_info", None)
    text = getattr(record, "masked_fault", None)
    if text:
        event["exception"] = text
    return event


class JsonLines(structlog.stdlib.ProcessorFormatter):
    """A formatter for `logging`: timestamp, level, logger, event, request_id, exception."""

    def __init__(self) -> None:
        super().__init__(
            foreign_pre_chain=[
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                _add_request,
                _add_fault,
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(ensure_ascii=False),
            ],
        )

    def format(self, record: logging.LogRecord) -> str:
        record.masked_fault = record.exc_text  # the formatter below drops it
        return super().format(record)
