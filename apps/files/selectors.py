"""Reads of file requests, scope first: whoever may read the service may read what was fetched of it."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import QuerySet, Sum

from agent.contract.messages import FileOrder
from agent.contract.states import FileKind
from apps.core import texts
from apps.core.errors import Conflict, Refusal
from apps.files.models import OPEN, FileRequest, FileStatus
from apps.files.store import Stored, is_whole
from apps.fleet.models import Node
from apps.tenants import scope
from apps.tenants.models import Tenant
from apps.tenants.scope import Viewer

ORDERS_AT_ONCE = 32  # in one answer to a node; the rest when these are done
_SCOPE: Mapping[str, str] = {"tenant": "task__group__tenant", "creator": "task__group__created_by"}


def _live() -> QuerySet[FileRequest]:
    rows = FileRequest.objects.select_related("task", "node", "created_by")
    return rows.filter(task__group__deleted_at__isnull=True)


def requests(viewer: Viewer) -> QuerySet[FileRequest]:
    """Requests in sight, newest first."""
    return scope.visible(viewer, _live(), **_SCOPE)


def request_by_id(viewer: Viewer, public_id: str, *, manage: bool = False) -> FileRequest:
    """One request. Raises NotFound, or Forbidden where it is readable but `manage` is asked for."""
    get = scope.get_manageable if manage else scope.get_visible
    return get(viewer, _live(), public_id, **_SCOPE)


def describe(row: FileRequest) -> dict[str, Any]:
    """One request as the API shows it, in the active language."""
    code, params = row.reason_code, row.reason_params
    return {
        "id": row.public_id,
        "task_id": row.task.public_id,
        "request_type": row.kind,
        "target_path": row.path,
        "status": row.status,
        "reason": {"code": code, "params": params, "text": texts.say(code, params)} if code else None,
        "entries": row.entries,
        "more": row.more,
        "size": row.size,
        "received": row.received,
        "sha256": row.sha256,
        "created_by": row.created_by.get_username(),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
    }


def pieces_of(row: FileRequest) -> list[Stored]:
    """The stored pieces of a file that is there whole, in order. Raises Conflict while it is not there or
    never will be, Refusal 410 where the store has lost it."""
    if row.kind == FileKind.LIST:
        raise Conflict("file_is_a_list")
    if row.status != FileStatus.READY:
        raise Conflict("file_not_ready", now=row.status)
    pieces = stored_of(row)
    if not is_whole(pieces):
        raise Refusal("file_bytes_gone", 410)
    return pieces


def stored_of(row: FileRequest) -> list[Stored]:
    """What came so far, in order."""
    return list(row.pieces.order_by("start").values_list("start", "end", "file"))


def orders_for(node: Node) -> list[FileOrder]:
    """What a node's agent is asked for now; one indexed statement, for every heartbeat."""
    rows = FileRequest.objects.filter(node=node, status__in=OPEN, task__group__deleted_at__isnull=True)
    asked = rows.order_by("pk").values_list(
        "public_id", "kind", "path", "task__volumes", "task__model_path", "received", "version"
    )
    return [
        FileOrder(
            request_id=public_id,
            kind=FileKind(kind),
            path=path,
            volumes=volumes,
            model_path=model_path,
            chunk_bytes=settings.FILE_CHUNK_BYTES,
            offset=received,
            version=version,
        )
        for public_id, kind, path, volumes, model_path, received, version in asked[:ORDERS_AT_ONCE]
    ]


def open_requests(tenant: Tenant) -> int:
    """How many requests of a tenant wait for their nodes."""
    return FileRequest.objects.filter(task__group__tenant=tenant, status__in=OPEN).count()


def bytes_of(tenant: Tenant) -> int:
    """What a tenant's files take here, those that are on their way in full."""
    kept = FileRequest.objects.filter(
        task__group__tenant=tenant, status__in=[FileStatus.SENDING, FileStatus.READY]
    )
    return kept.aggregate(size=Sum("size"))["size"] or 0
