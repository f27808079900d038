"""Reads of the log store, scope first.

A log is read by (attempt, offset). Bytes that are not there any more, or whose file can't be read,
are a hole: an answer begins behind it, and `start` says so. Never returns half a character.
"""

import logging
from dataclasses import dataclass

from django.core.files.storage import default_storage

from apps.streams.models import LogChunk
from apps.tenants.scope import Viewer
from apps.workloads import selectors as workloads
from apps.workloads.models import Task

log = logging.getLogger("heteroflow.streams")

DEFAULT_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogPiece:
    """Bytes [start, end) of one attempt's log. `attempt` is 0 before the first placement;
    `attempts` are those that have a log; `stored_until` is where this attempt's log ends now."""

    attempt: int
    start: int
    end: int
    text: str
    stored_until: int
    attempts: list[int]


def read_log(
    viewer: Viewer,
    task_id: str,
    *,
    attempt: int | None = None,
    start: int | None = None,
    stop: int | None = None,
    tail_bytes: int = DEFAULT_TAIL_BYTES,
    tail_lines: int | None = None,
    max_bytes: int = 1024 * 1024,
) -> LogPiece:
    """A piece of a task's log: from `start`, or the last lines or bytes where no start is given; with
    `stop` those before it, so that a reader can go back page by page.

    Without an attempt: the newest that has a log. `max_bytes` is at least 16. Costs the same however long
    the log is. Raises NotFound for a task out of sight.
    """
    task = workloads.task_by_id(viewer, task_id)
    attempts = _attempts_of(task)
    if attempt is None:
        attempt = attempts[-1] if attempts else task.attempt
    until = _end_of(task, attempt)
    last = until if stop is None else min(stop, until)
    if start is None:
        wanted = max_bytes if tail_lines is not None else min(tail_bytes, max_bytes)
        begin, data = _read_span(task, attempt, max(0, last - wanted), last, max_bytes)
        if tail_lines is not None:
            cut = _start_of_last_lines(data, tail_lines)
            begin, data = begin + cut, data[cut:]
    else:
        begin, data = _read_span(task, attempt, min(start, last), last, max_bytes)
    return LogPiece(attempt, begin, begin + len(data), data.decode("utf-8", "replace"), until, attempts)


def _attempts_of(task: Task) -> list[int]:
    """The attempts that have a log. One look into the index for each: a long log has very many rows."""
    found: list[int] = []
    rows = LogChunk.objects.filter(task=task).order_by("attempt").values_list("attempt", flat=True)
    while (following := rows.filter(attempt__gt=found[-1] if found else -1).first()) is not None:
        found.append(following)
    return found


def _end_of(task: Task, attempt: int) -> int:
    """Where an attempt's log ends: at the end of the piece that begins last."""
    rows = LogChunk.objects.filter(task=task, attempt=attempt).order_by("-start")
    return rows.values_list("end", flat=True).first() or 0


def _first_chunk(task: Task, attempt: int, place: int) -> int:
    """The start of the piece that holds a place, or of any before it: pieces lie in order."""
    rows = LogChunk.objects.filter(task=task, attempt=attempt, start__lte=place).order_by("-start")
    return rows.values_list("start", flat=True).first() or 0


def _read_span(task: Task, attempt: int, start: int, stop: int, limit: int) -> tuple[int, bytes]:
    """At most `limit` bytes of [start, stop), or from behind the hole that begins there."""
    at = start
    data = bytearray()
    chunks = LogChunk.objects.filter(
        task=task,
        attempt=attempt,
        start__gte=_first_chunk(task, attempt, start),
        start__lt=stop,
        end__gt=start,
    ).order_by("start")
    for chunk in chunks.iterator(chunk_size=100):
        if chunk.start > at:
            if data:
                break
            at = start = chunk.start
        piece = _read_file(chunk, at - chunk.start, min(limit - len(data), stop - at))
        if not piece:
            if data:
                break
            at = start = chunk.end
            continue
        data += piece
        at += len(piece)
        if at < chunk.end:
            break
    lead = _continuation_bytes(data)
    whole = bytes(data[lead:])
    cut_short = len(data) == limit or at == stop
    return start + lead, _without_half_character(whole) if cut_short else whole


def _read_file(chunk: LogChunk, offset: int, limit: int) -> bytes:
    if limit <= 0:
        return b""
    try:
        with default_storage.open(chunk.file, "rb") as file:
            file.seek(offset)
            return bytes(file.read(min(limit, chunk.end - chunk.start - offset)))
    except OSError as error:
        log.warning("log file of %s can not be read: %s", chunk, error.strerror)
        return b""


def _continuation_bytes(data: bytes | bytearray) -> int:
    """How many bytes at the front are the rest of a character that began before."""
    lead = 0
    while lead < min(3, len(data)) and data[lead] & 0xC0 == 0x80:
        lead += 1
    return lead


def _without_half_character(data: bytes) -> bytes:
    """The bytes without the beginning of a character that is cut off at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if back < width else data
    return data


def _start_of_last_lines(data: bytes, lines: int) -> int:
    """Where the last `lines` lines begin; a line break at the very end opens no line of its own."""
    if lines <= 0:
        return len(data)
    end = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        end = data.rfind(b"\n", 0, end)
        if end < 0:
            return 0
    return end + 1
