"""Writes of file requests: ask, take what a node sends, delete, let go of what is old (AGENT-12).

Pieces are written outside of the transaction; a row makes them count, and rows have no gaps. Never decides
who speaks for a node: agentlink has checked that.
"""

import hashlib
import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from agent.contract.codes import Code, Reason, reason
from agent.contract.messages import FileAnswer, FileReply
from agent.contract.paths import is_within, mounted_places, normalise
from agent.contract.states import FileKind
from apps.core import audit, hints
from apps.core.bodies import Fields
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid, Refusal, Value, named_by
from apps.core.leases import Held
from apps.files import selectors, store
from apps.files.models import OPEN, FilePiece, FileRequest, FileStatus
from apps.tenants import quotas
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads import selectors as workloads
from apps.workloads.models import Claim, Task

log = logging.getLogger("heteroflow.files")

MB = 1024 * 1024
LARGEST = 2**63 - 1
SLICE = 500


def request_file(*, actor: Viewer, body: dict[str, Any], now: datetime) -> FileRequest:
    """Ask a task's node for a folder's list or a file. `body`: {task_id, request_type, target_path}.

    The node is the one of its newest placement, whether that still runs or not: files stay. Raises Invalid,
    NotFound or Forbidden for the task, Conflict where there is no node or too many requests wait.
    """
    errors: list[FieldError] = []
    fields = Fields(body, errors)
    task_id = fields.text("task_id", limit=40, required=True)
    kind = fields.choice("request_type", [kind.value for kind in FileKind])
    path = fields.text("target_path", limit=LARGEST, required=True, strip=False)
    fields.close()
    if not kind and not any(error.field == "request_type" for error in errors):
        fields.refuse("request_type", "required")
    if errors:
        raise Invalid(errors)
    if actor.user_id is None:  # people ask for files, loops don't
        raise Forbidden
    with named_by("task_id", task_id):
        task = workloads.task_by_id(actor, task_id, manage=True)
    _check_path(task, path)
    claim = Claim.objects.filter(task=task).select_related("node").order_by("-attempt").first()
    if claim is None:
        raise Conflict("file_no_node")
    with transaction.atomic():
        quotas.lock(task.group.tenant)  # so that parallel requests count one after the other
        waiting, most = selectors.open_requests(task.group.tenant), settings.FILE_REQUESTS_OPEN
        if waiting >= most:
            raise Conflict("file_requests_open", open=waiting, max=most)
        row = FileRequest.objects.create(
            task=task,
            node=claim.node,
            created_by_id=actor.user_id,
            kind=kind,
            path=path,
            created_at=now,
            touched_at=now,
            expires_at=now + timedelta(seconds=settings.FILE_KEEP_S),
        )
        _note(actor, "request_file", row, after={"kind": kind, "path": path})
        hints.look(claim.node.public_id)
    return row


def _check_path(task: Task, path: str) -> None:
    """By its text alone, as AGENT-05 has it first; the node looks again, links resolved. A model's relative
    name stands for a folder that only the node knows, so that such a task's paths are judged there."""
    places = mounted_places(task.volumes, task.model_path)
    text = normalise(path)
    relative = bool(task.model_path) and not task.model_path.startswith("/")
    if text is None or not (relative or any(is_within(text, place) for place in places)):
        shown: dict[str, Value] = {"mounts": ", ".join(places) or "-"}
        raise Invalid([FieldError("target_path", "path_not_mounted", path[:200], shown)])


def delete_request(*, actor: Viewer, row: FileRequest) -> None:
    """Drop a request with what came for it; one on its way ends."""
    with transaction.atomic():
        _note(actor, "delete_file_request", row, before={"kind": row.kind, "path": row.path})
        row.delete()
    store.drop_folder(row.public_id)


def _note(actor: Viewer, verb: str, row: FileRequest, **fields: Any) -> None:
    audit.note(
        actor,
        verb,
        kind="file_request",
        public_id=row.public_id,
        name=row.task.name,
        tenant=tenancy_of(row.task.group.tenant),
        **fields,
    )


# --- what nodes send --------------------------------------------------------------------------------


def take_answer(*, row: FileRequest, answer: FileAnswer, now: datetime) -> FileReply:
    """A folder's entries, or the reason why nothing comes. A repeat changes nothing."""
    if answer.reason is not None:
        fail([row.pk], answer.reason, now=now)
    elif row.kind == FileKind.LIST:
        entries = [
            {"name": entry.name, "kind": entry.kind, "size": entry.size, "modified_at": entry.modified_at}
            for entry in answer.entries
        ]
        _change(row, now, status=FileStatus.READY, entries=entries, more=answer.more)
    return FileReply(row.received, done=True)


def take_piece(
    *,
    row: FileRequest,
    offset: int,
    size: int,
    version: str,
    sha256: str,
    body: store.Body,
    now: datetime,
) -> FileReply:
    """A piece of a file of `size` bytes; the answer says where the next one begins. A piece that is there
    adds nothing, one that is not next neither. With the last one the whole gets its checksum.

    Raises Conflict for a request that is closed, or gets closed by this piece (the quota is full, the file
    is another one); Invalid for figures that can't be; Refusal as `store.receive`.
    """
    if row.status == FileStatus.READY:
        return FileReply(row.size or 0, done=True)
    if row.status not in OPEN or row.kind != FileKind.DOWNLOAD:
        raise Conflict("file_closed")
    _check_figures(offset, size, version)
    if not row.version:
        _begin(row, size, version, now)
    if (row.version, row.size) != (version, size):
        fail([row.pk], reason(Code.FILE_CHANGED, path=row.path), now=now)
        raise Conflict("file_closed")
    if offset != row.received:
        return FileReply(row.received)
    if offset < size:
        most = min(settings.FILE_CHUNK_BYTES, size - offset)
        piece = store.receive(body, sha256=sha256, most=most)
        with piece:
            if not piece.size:
                raise Refusal("file_chunk_damaged")  # nothing, where something is to come
            row.received = _add(row, offset, piece, now)
    if row.received < size:
        return FileReply(row.received)
    return _finish(row, now)


def _check_figures(offset: int, size: int, version: str) -> None:
    errors = [
        FieldError(field, "out_of_range", str(value), {"min": 0, "max": str(LARGEST)})
        for field, value in (("offset", offset), ("size", size))
        if not 0 <= value <= LARGEST
    ]
    if not 0 < len(version) <= 100 or not version.isascii() or not version.isprintable():
        errors.append(FieldError("version", "bad_characters", None, {}))
    if errors:
        raise Invalid(errors)


def _begin(row: FileRequest, size: int, version: str, now: datetime) -> None:
    """Take the file on, if the tenant's store has room for all of it."""
    limit, tenant = settings.FILE_TENANT_BYTES, row.task.group.tenant
    with transaction.atomic():
        quotas.lock(tenant)
        used = selectors.bytes_of(tenant)
        fits = used + size <= limit
        if fits:
            _change(row, now, status=FileStatus.SENDING, size=size, version=version)
    if not fits:
        why = reason(Code.FILE_QUOTA, size_mb=-(-size // MB), limit_mb=limit // MB, used_mb=-(-used // MB))
        fail([row.pk], why, now=now)
        raise Conflict("file_closed")
    row.refresh_from_db()  # another request may have been first


def _add(row: FileRequest, start: int, piece: Any, now: datetime) -> int:
    """Where the file ends now. Two requests with the same piece can't both add it."""
    end = start + piece.size
    name = store.keep(row.public_id, start, piece)
    try:
        with transaction.atomic():
            FilePiece.objects.create(request=row, start=start, end=end, file=name)
            moved = FileRequest.objects.filter(pk=row.pk, received=start, status__in=OPEN)
            if not moved.update(received=end, touched_at=now):
                raise IntegrityError
    except IntegrityError:
        store.drop([name])
        there = FileRequest.objects.filter(pk=row.pk, status__in=OPEN).values_list("received", flat=True)
        if not there:
            raise Conflict("file_closed") from None
        return there[0]
    return end


def _finish(row: FileRequest, now: datetime) -> FileReply:
    """All is there: the checksum is of what is stored, which is what people get."""
    try:
        pieces = selectors.stored_of(row)
        sha256 = store.checksum(pieces) if pieces else hashlib.sha256().hexdigest()
    except (OSError, EOFError):
        log.exception("the pieces of file request %s can not be read", row.public_id)
        fail([row.pk], reason(Code.INTERNAL), now=now)
        raise Conflict("file_closed") from None
    _change(row, now, status=FileStatus.READY, sha256=sha256)
    return FileReply(row.size or 0, done=True)


def _change(row: FileRequest, now: datetime, **fields: Any) -> None:
    """Only while it is open: what is closed stays as it is."""
    FileRequest.objects.filter(pk=row.pk, status__in=OPEN).update(touched_at=now, **fields)


def fail(pks: Iterable[int], why: Reason, *, now: datetime) -> int:
    """Close open requests for a reason; what came for them goes. Returns how many were open."""
    with transaction.atomic():
        names = _close(pks, why, now)
    for name in names:
        store.drop_folder(name)
    return len(names)


def _close(pks: Iterable[int], why: Reason, now: datetime) -> list[str]:
    """Those that were closed by this. A piece that is being stored meanwhile is not added any more."""
    closed = []
    for pk, name in FileRequest.objects.filter(pk__in=list(pks)).values_list("pk", "public_id"):
        row = FileRequest.objects.filter(pk=pk, status__in=OPEN)
        if row.update(
            status=FileStatus.FAILED, reason_code=why.code, reason_params=why.params, touched_at=now
        ):
            closed.append(name)
            FilePiece.objects.filter(request_id=pk).delete()
    return closed


# --- what is old ------------------------------------------------------------------------------------


def give_up_silent(*, lease: Held, now: datetime) -> int:
    """Close requests for which the node sent nothing for FILE_WAIT_S; returns how many. Raises LeaseLost."""
    limit = settings.FILE_WAIT_S
    late = FileRequest.objects.filter(status__in=OPEN, touched_at__lt=now - timedelta(seconds=limit))
    pks = list(late.values_list("pk", flat=True)[:SLICE])
    if not pks:
        return 0
    with lease.transaction():
        names = _close(pks, reason(Code.FILE_NO_ANSWER, after_s=round(limit)), now)
    for name in names:
        store.drop_folder(name)
    return len(names)


def drop_expired(*, lease: Held, now: datetime) -> int:
    """Delete requests, and what came for them, after FILE_KEEP_S; returns how many. Raises LeaseLost."""
    old = FileRequest.objects.filter(expires_at__lt=now).order_by("expires_at")
    rows = dict(old.values_list("pk", "public_id")[:SLICE])
    if not rows:
        return 0
    with lease.transaction():
        FileRequest.objects.filter(pk__in=rows).delete()
    for name in rows.values():
        store.drop_folder(name)
    return len(rows)


def drop_orphans() -> int:
    """Delete stored bytes of requests that are gone, with their task for example; returns how many. A
    folder appears only for a request that exists, so that one without a request is never a new one."""
    names = store.folders()
    known: set[str] = set()
    for at in range(0, len(names), SLICE):
        some = names[at : at + SLICE]
        known.update(
            FileRequest.objects.filter(public_id__in=some)
            .exclude(status=FileStatus.FAILED)
            .values_list("public_id", flat=True)
        )
    gone = [name for name in names if name not in known]
    for name in gone:
        store.drop_folder(name)
    return len(gone)
