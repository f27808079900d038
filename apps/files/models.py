"""Requests for files of tasks and the pieces that came: bytes rest in Django's storage, rows hold where."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from agent.contract.paths import MAX_PATH_BYTES
from agent.contract.states import FileKind
from apps.core.fields import PublicIdField
from apps.fleet.models import Node
from apps.workloads.models import Task


class FileStatus(models.TextChoices):
    """`waiting` for the node, `sending` while pieces come, then `ready` or `failed` for good."""

    WAITING = "waiting"
    SENDING = "sending"
    READY = "ready"
    FAILED = "failed"


OPEN = (FileStatus.WAITING, FileStatus.SENDING)


class FileRequest(models.Model):
    """Somebody wants a folder's list or a file of a task (AGENT-12). `version` and `size` (bytes) are what
    the node said with the first piece; `sha256` is of the whole, once it is there; `touched_at` is when
    its node last sent something for it."""

    public_id = PublicIdField(kind="file_request")
    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="file_requests")
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="file_requests")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    kind = models.CharField(max_length=10, choices=[(kind.value, kind.value) for kind in FileKind])
    path = models.CharField(max_length=MAX_PATH_BYTES)
    status = models.CharField(max_length=10, choices=FileStatus.choices, default=FileStatus.WAITING)
    reason_code = models.CharField(max_length=50, blank=True, default="")
    reason_params = models.JSONField(default=dict)
    entries = models.JSONField(default=list)  # [{name, kind, size, modified_at}] of a list
    more = models.BooleanField(default=False)
    version = models.CharField(max_length=100, blank=True, default="")
    size = models.PositiveBigIntegerField(null=True)
    received = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    created_at = models.DateTimeField()
    touched_at = models.DateTimeField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        indexes = [models.Index(fields=["node"], condition=Q(status__in=OPEN), name="open_file_requests")]

    def __str__(self) -> str:
        return self.public_id


class FilePiece(models.Model):
    """Bytes [start, end) of a request's file, in one stored file. Pieces have no gaps."""

    request = models.ForeignKey(FileRequest, on_delete=models.CASCADE, related_name="pieces")
    start = models.PositiveBigIntegerField()
    end = models.PositiveBigIntegerField()
    file = models.CharField(max_length=300)

    class Meta:
        ordering = ["request", "start"]
        constraints = [models.UniqueConstraint(fields=["request", "start"], name="one_piece_a_start")]

    def __str__(self) -> str:
        return f"{self.request} {self.start}-{self.end}"
