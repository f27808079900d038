"""POST /api/v1/task-groups?dry_run=true: its switch and what it answers (SVC-15)."""

from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.request import Request

from apps.core.errors import FieldError, Invalid
from apps.inference.api.explaining import NodeWordShape
from apps.inference.api.shapes import ReasonShape, Shape

DRY_RUN = OpenApiParameter(
    "dry_run", bool, description="true: check and place without creating anything; answered by 200"
)


def is_dry_run(request: Request) -> bool:
    """Whether nothing is to be made. Raises Invalid for any other word than true and false: nobody who asks
    for a trial shall get a service."""
    value = request.query_params.get("dry_run", "false")
    if value not in ("true", "false"):
        raise Invalid([FieldError("dry_run", "not_a_choice", value, {"choices": "true, false"})])
    return value == "true"


class DryRunCardShape(Shape):
    index = serializers.IntegerField()
    model = serializers.CharField()
    vram_total_mb = serializers.IntegerField(allow_null=True)


class DryRunTaskShape(Shape):
    name = serializers.CharField()
    outcome = serializers.ChoiceField(
        choices=["would_start", "would_borrow", "would_preempt", "would_wait_for_room", "would_wait"]
    )
    text = serializers.CharField()
    node = serializers.CharField(allow_null=True)
    cards = DryRunCardShape(many=True)
    preempts = serializers.IntegerField(help_text="tasks of a lower priority that would give way")
    refusals = ReasonShape(many=True, help_text="why it would wait, of all nodes")
    nodes = NodeWordShape(many=True, help_text="what each node says; the nearest misses first")


class DryRunShape(Shape):
    dry_run = serializers.BooleanField()
    fits = serializers.BooleanField(help_text="all of its tasks would start at once")
    replicas = serializers.IntegerField()
    gpus = serializers.IntegerField(help_text="cards that all its tasks ask for together")
    estimated_gpu_memory_mb = serializers.IntegerField(allow_null=True, help_text="of one task")
    warnings = ReasonShape(many=True)
    tasks = DryRunTaskShape(many=True)
