"""Turns the lines of usage files into rows, each exactly once (GW-12).

A batch of rows and the file's new offset go into one transaction; a request id that is there
already is passed over. Takes over the files of processes that are gone. Never changes a line.
"""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from django.conf import settings
from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections, transaction

from apps.core.clock import utc_now
from apps.usage import hosts
from apps.usage.files import UsageFileName, owner_lives, parse_name, process_start
from apps.usage.models import UsageFile, UsageRecord
from apps.usage.record import UsageEntry

log = logging.getLogger("heteroflow.usage")
BATCH_BYTES = 1024 * 1024
_decoder = msgspec.json.Decoder(UsageEntry)


class FlushCount(msgspec.Struct):
    """What one round did: rows sent to the database, lines put aside, files removed."""

    rows: int = 0
    rejected: int = 0
    removed: int = 0


def flush(folder: Path, *, own_pid: int, batch_bytes: int = BATCH_BYTES) -> FlushCount:
    """One round over the files of `own_pid` and of processes that are gone.

    Raises OperationalError or InterfaceError when the database is away; nothing is lost then and
    the next round goes on from the stored offsets.
    """
    count = FlushCount()
    listed = _listed(folder)
    offsets = dict(
        UsageFile.objects.filter(name__in=[path.name for path, _ in listed]).values_list("name", "offset")
    )
    for path, name in listed:
        if not _has_news(path, offsets.get(path.name, 0)):
            continue
        own = name.owner_pid == own_pid and name.owner_start == process_start(own_pid)
        gone = not own and not owner_lives(name)
        if own or gone:
            _flush_file(path, gone, count, batch_bytes)
    _remove_finished(folder, count)
    return count


class Flusher:
    """A thread that flushes every `interval_s` seconds, and once more when stopped. It says what waits every
    USAGE_REPORT_PERIOD_S."""

    def __init__(self, folder: Path, *, own_pid: int, interval_s: float = 1.0) -> None:
        self._folder = folder
        self._own_pid = own_pid
        self._interval_s = interval_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage-flusher", daemon=True)
        self._failing = False
        self._report_due = 0.0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends the thread after a last round; rows that didn't make it stay in the file."""
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            last = self._stopping.wait(self._interval_s)
            close_old_connections()
            try:
                try:
                    flush(self._folder, own_pid=self._own_pid)
                finally:  # what keeps a call from becoming a row is what the report is for
                    self._report(last)
                self._failing = False
            except (DatabaseError, InterfaceError, OSError) as error:
                if not self._failing:
                    log.warning(
                        "usage can't be flushed just now (%s); the files keep it", type(error).__name__
                    )
                self._failing = True
            close_old_connections()
            if last:
                return

    def _report(self, last: bool) -> None:
        if last:
            hosts.leave(self._folder, utc_now())
        elif time.monotonic() >= self._report_due:
            self._report_due = time.monotonic() + settings.USAGE_REPORT_PERIOD_S
            hosts.report(self._folder, utc_now())


def _listed(folder: Path) -> list[tuple[Path, UsageFileName]]:
    if not folder.is_dir():
        return []
    found = [(path, parse_name(path.name)) for path in sorted(folder.iterdir())]
    return [(path, name) for path, name in found if name is not None]


def _has_news(path: Path, offset: int) -> bool:
    """Whether the file is longer than what was read; asked first, so that idle rounds write nothing."""
    try:
        return path.stat().st_size > offset
    except FileNotFoundError:
        return False


def _flush_file(path: Path, gone: bool, count: FlushCount, batch_bytes: int) -> None:
    more = True
    while more:
        try:
            with transaction.atomic():
                more = _flush_batch(path, gone, count, batch_bytes)
        except FileNotFoundError:
            return  # another flusher finished and removed it


def _flush_batch(path: Path, gone: bool, count: FlushCount, batch_bytes: int) -> bool:
    """Inserts one batch and moves the offset on; True while there may be more."""
    size = path.stat().st_size
    file, _ = UsageFile.objects.select_for_update().get_or_create(name=path.name)
    if size <= file.offset:
        return False
    with path.open("rb") as source:
        source.seek(file.offset)
        block = source.read(batch_bytes)
        while b"\n" not in block and (rest := source.read(batch_bytes)):
            block += rest
    whole = block.rfind(b"\n") + 1
    if not whole:
        if gone:  # torn by the end of its writer, so its answer was never finished either
            log.warning("usage file %s: its last, torn line of %d bytes is dropped", path.name, len(block))
            file.offset += len(block)
            file.save(update_fields=["offset", "updated_at"])
        return False
    entries, bad = _read_lines(block[:whole])
    bad += _insert(entries)
    if bad:
        _put_aside(path, bad)
    file.offset += whole
    file.save(update_fields=["offset", "updated_at"])
    count.rows += len(entries)
    count.rejected += len(bad)
    return True


def _read_lines(block: bytes) -> tuple[list[UsageEntry], list[bytes]]:
    entries, bad = [], []
    for line in block.split(b"\n")[:-1]:
        try:
            entries.append(_decoder.decode(line))
        except msgspec.DecodeError:
            bad.append(line)
    return entries, bad


def _insert(entries: list[UsageEntry]) -> list[bytes]:
    """Inserts all; if the batch fails, one by one, so that one bad record costs one record.

    Returns the lines of records that the database refused.
    """
    try:
        with transaction.atomic():
            UsageRecord.objects.bulk_create([_row(entry) for entry in entries], ignore_conflicts=True)
        return []
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, ValueError, OverflowError):
        return [msgspec.json.encode(entry) for entry in entries if not _insert_one(entry)]


def _insert_one(entry: UsageEntry) -> bool:
    try:
        with transaction.atomic():
            UsageRecord.objects.bulk_create([_row(entry)], ignore_conflicts=True)
    except (OperationalError, InterfaceError):
        raise
    except (DatabaseError, ValueError, OverflowError) as error:
        log.error("usage record %s was refused: %s", entry.request_id, type(error).__name__)
        return False
    return True


def _row(entry: UsageEntry) -> UsageRecord:
    fields = msgspec.structs.asdict(entry)
    fields["started_at"] = datetime.fromtimestamp(entry.started_at, UTC)
    fields["ending"] = entry.ending.value
    return UsageRecord(**fields)


def _put_aside(path: Path, lines: list[bytes]) -> None:
    """Keeps lines that can't become rows beside the file, for an operator to look at."""
    aside = path.with_suffix(".rejected")
    log.error(
        "usage file %s: %d lines can't be stored; they are kept in %s", path.name, len(lines), aside.name
    )
    with aside.open("ab") as target:
        target.write(b"".join(line + b"\n" for line in lines))


def _remove_finished(folder: Path, count: FlushCount) -> None:
    """Removes files that are read to their end and will never grow again."""
    listed = _listed(folder)
    for path, name in listed:
        superseded = any(other.owned_by(name) and other.sequence > name.sequence for _, other in listed)
        if not superseded and owner_lives(name):
            continue
        with transaction.atomic():
            file = UsageFile.objects.select_for_update().filter(name=path.name).first()
            try:
                read_to_end = path.stat().st_size <= (file.offset if file is not None else 0)
                if read_to_end:
                    path.unlink()
            except FileNotFoundError:
                continue
            if read_to_end:
                count.removed += 1
                if file is not None:
                    file.delete()
