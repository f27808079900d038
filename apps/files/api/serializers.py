"""Shapes of this app's requests and answers."""

from typing import Any

from rest_framework import serializers

from agent.contract.paths import MAX_PATH_BYTES
from agent.contract.states import FileKind
from apps.files.models import FileStatus

KINDS = [kind.value for kind in FileKind]
STATUSES = [status.value for status in FileStatus]


class FileRequestBody(serializers.Serializer[Any]):
    task_id = serializers.CharField(max_length=40)
    request_type = serializers.ChoiceField(choices=KINDS)
    target_path = serializers.CharField(
        max_length=MAX_PATH_BYTES,
        help_text="absolute, on the node, inside of what the task mounts: its volumes or its model",
    )


class FileEntryShape(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.CharField(help_text="file, folder, link or other")
    size = serializers.IntegerField(allow_null=True, help_text="bytes, of files only")
    modified_at = serializers.FloatField(allow_null=True, help_text="seconds since 1970, the node's clock")


class FileReasonShape(serializers.Serializer[Any]):
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField()


class FileRequestShape(serializers.Serializer[Any]):
    """`entries` of a list, `more` where some were left out; `size` and `sha256` of a file. Both the request
    and what came for it go at `expires_at`."""

    id = serializers.CharField()
    task_id = serializers.CharField()
    request_type = serializers.ChoiceField(choices=KINDS)
    target_path = serializers.CharField()
    status = serializers.ChoiceField(choices=STATUSES)
    reason = FileReasonShape(allow_null=True)
    entries = FileEntryShape(many=True)
    more = serializers.BooleanField()
    size = serializers.IntegerField(allow_null=True)
    received = serializers.IntegerField(help_text="bytes that came so far")
    sha256 = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField()
