"""Writes of the log store: append a piece, drop what is too old or belongs to nobody.

Offsets are bytes of UTF-8 of the text as the agent sent it. Secrets are masked byte for byte, so the
stored text has the same offsets. Files are written outside the transaction; a row makes them count.
Never decides who may write: agentlink has checked that the node holds the attempt.
"""

import logging
from datetime import datetime

from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db import IntegrityError, transaction
from django.db.models import Exists, F, Max, Min, OuterRef, Sum, Value
from django.db.models.functions import Greatest

from apps.core import hints
from apps.core.errors import FieldError, Invalid, NotFound, Unavailable
from apps.core.leases import Held
from apps.core.masking import mask_keeping_length
from apps.streams.models import LogChunk
from apps.workloads.models import Task

log = logging.getLogger("heteroflow.streams")

FOLDER = "logs"
SLICE = 500  # ids in one query
LARGEST_OFFSET = 2**63 - 1
DROPS_AT_ONCE = 20
FILE_BYTES = 4096  # what a file takes of a disk at least


def log_group(task_id: str) -> str:
    """The channel group that hears `log.more` for a task (by its public id)."""
    return f"log.{task_id}"


def append_log(
    *, task: Task, attempt: int, offset: int, text: str, now: datetime, lost_from: int | None = None
) -> int:
    """Append a piece of one attempt's log; returns the offset that the next piece must have.

    Repeated and overlapping pieces add only what is new. A piece that begins behind a gap adds nothing: the
    answer says from where to send again (AGENT-10), unless it says that just this gap, from `lost_from` to
    `offset`, is lost for good. What is stored beyond LOG_KEEP_BYTES goes, the oldest first. Raises Invalid
    for an offset out of range, NotFound when the task has been deleted meanwhile, Unavailable when the text
    can't be stored now.
    """
    masked = mask_keeping_length(text).encode()
    most = LARGEST_OFFSET - len(masked)
    for field, value in (("offset", offset), ("lost_from", lost_from or 0)):
        if not 0 <= value <= most:
            raise Invalid([FieldError(field, "out_of_range", str(value), {"min": 0, "max": str(most)})])
    have = stored_until(task, attempt)
    if lost_from is not None and lost_from == have < offset:
        have = offset
    while offset <= have < offset + len(masked):
        if _add_chunk(task, attempt, have, masked[have - offset :], now):
            end = offset + len(masked)
            _drop_before(task, attempt, end - settings.LOG_KEEP_BYTES)
            hints.announce(log_group(task.public_id), {"type": "log.more", "attempt": attempt, "end": end})
            return end
        seen, have = have, stored_until(task, attempt)  # another request was first: what is left to add?
        if have <= seen:
            raise NotFound  # nobody was: the task's row has gone
    return have


def stored_until(task: Task, attempt: int) -> int:
    """Where the stored log of an attempt ends; 0 before its first piece."""
    end = LogChunk.objects.filter(task=task, attempt=attempt).aggregate(end=Max("end"))["end"]
    return end or 0


def _add_chunk(task: Task, attempt: int, start: int, piece: bytes, now: datetime) -> bool:
    """False when another request has put a chunk there first. Chunks have no gaps and their starts
    are unique, so that two writers with the same start can't both succeed."""
    name = f"{FOLDER}/{task.public_id}/{attempt}/{start:012d}.log"
    try:
        file = default_storage.save(name, ContentFile(piece))
    except OSError as error:
        log.error("log of %s/%s at %s not stored: %s", task.public_id, attempt, start, error.strerror)
        raise Unavailable from error
    try:
        with transaction.atomic():
            LogChunk.objects.create(
                task=task, attempt=attempt, start=start, end=start + len(piece), file=file, created_at=now
            )
    except IntegrityError:
        default_storage.delete(file)
        return False
    return True


def _drop_before(task: Task, attempt: int, place: int) -> None:
    """Let go of some of what lies before a place: one append makes room for more than itself, and waits
    for no tick. May be repeated, and done by two at once."""
    if place <= 0:
        return
    old = LogChunk.objects.filter(task=task, attempt=attempt, end__lte=place).order_by("start")
    _delete(dict(old.values_list("pk", "file")[:DROPS_AT_ONCE]))


def _delete(files: dict[int, str]) -> None:
    """Rows first: a row without a file would be a hole that reads as a fault."""
    LogChunk.objects.filter(pk__in=files).delete()
    for file in files.values():
        default_storage.delete(file)


def drop_above(*, lease: Held, store_bytes: int) -> int:
    """Keep all logs together within `store_bytes`, the oldest pieces first; returns how many went. The
    newest piece of an attempt stays. A small piece counts as the disk counts it. Raises LeaseLost."""
    taken = Greatest(F("end") - F("start"), Value(FILE_BYTES))
    excess = (LogChunk.objects.aggregate(taken=Sum(taken))["taken"] or 0) - store_bytes
    if excess <= 0:
        return 0
    later = LogChunk.objects.filter(
        task=OuterRef("task"), attempt=OuterRef("attempt"), start__gt=OuterRef("start")
    )
    oldest = (
        LogChunk.objects.filter(Exists(later)).order_by("created_at", "pk").values_list("pk", "file", taken)
    )
    dropped = 0
    while excess > 0:
        going = {}
        for pk, file, size in oldest[:SLICE]:
            if excess <= 0:
                break
            going[pk] = file
            excess -= size
        if not going:
            break
        with lease.transaction():
            LogChunk.objects.filter(pk__in=going).delete()
        for file in going.values():
            default_storage.delete(file)
        dropped += len(going)
    return dropped


def drop_old_chunks(*, lease: Held, keep_bytes: int) -> int:
    """Keep at most the last `keep_bytes` of each attempt's log; returns how many chunks went.

    The newest chunk always stays, so that the next offset is known. Readers begin at the first
    byte that is left. Raises LeaseLost.
    """
    spans = (
        LogChunk.objects.order_by()
        .values("task", "attempt")
        .annotate(first=Min("start"), last=Max("end"), newest=Max("start"))
        .filter(last__gt=F("first") + keep_bytes)
    )
    dropped = 0
    for span in spans:
        old = LogChunk.objects.filter(
            task=span["task"],
            attempt=span["attempt"],
            end__lte=span["last"] - keep_bytes,
            start__lt=span["newest"],
        )
        with lease.transaction():
            files = dict(old.values_list("pk", "file"))
            LogChunk.objects.filter(pk__in=files).delete()
        for file in files.values():
            default_storage.delete(file)
        dropped += len(files)
    return dropped


def drop_orphans() -> int:
    """Delete stored logs whose task's row is gone (their rows went with it); returns how many tasks'.

    A folder appears only for a task that exists, so that one without a task is never a new one.
    """
    try:
        folders, _ = default_storage.listdir(FOLDER)
    except FileNotFoundError:  # nothing was logged yet
        return 0
    known: set[str] = set()
    for at in range(0, len(folders), SLICE):
        some = folders[at : at + SLICE]
        known.update(Task.objects.filter(public_id__in=some).values_list("public_id", flat=True))
    gone = [folder for folder in folders if folder not in known]
    for folder in gone:
        _delete_tree(f"{FOLDER}/{folder}")
    return len(gone)


def _delete_tree(path: str) -> None:
    folders, files = default_storage.listdir(path)
    for name in files:
        default_storage.delete(f"{path}/{name}")
    for name in folders:
        _delete_tree(f"{path}/{name}")
    default_storage.delete(path)
