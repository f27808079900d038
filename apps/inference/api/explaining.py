"""GET /api/v1/task-groups/{id}/explain: why a service is in its state (SVC-14)."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes
from apps.core.clock import utc_now
from apps.inference.api.shapes import STATES, LastErrorShape, ReasonShape, Shape
from apps.inference.explain import explain
from apps.tenants.scope import viewer_of
from apps.workloads import selectors as work


class AwaitedShape(Shape):
    code = serializers.CharField()
    text = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True, help_text="empty: no moment is set")


class AdviceShape(Shape):
    code = serializers.CharField()
    text = serializers.CharField()


class HolderShape(Shape):
    card = serializers.IntegerField(help_text="its index on the node")
    tenant = serializers.CharField()
    service = serializers.CharField()
    task = serializers.CharField()
    percent = serializers.IntegerField(help_text="of the card; 100: it has the card alone")
    state = serializers.ChoiceField(choices=["held", "sleeping", "kept"])


class LineShape(Shape):
    position = serializers.IntegerField(help_text="1: it is looked at first")
    waiting = serializers.IntegerField(help_text="of all tenants together")


class LoanOfTaskShape(Shape):
    kind = serializers.ChoiceField(choices=["borrowed", "lent"])
    card = serializers.IntegerField(help_text="its index on the node")
    other = serializers.CharField(allow_null=True, help_text="the other task; empty: of another tenant")
    until = serializers.DateTimeField()


class NodeWordShape(Shape):
    node = serializers.CharField()
    fits = serializers.BooleanField(help_text="it would take the task now")
    reason = ReasonShape(help_text="the first check that refuses it there, with its numbers")
    holders = HolderShape(many=True, help_text="whose work holds its cards; told to operators alone")


class ExplainedTaskShape(Shape):
    id = serializers.CharField()
    name = serializers.CharField()
    role = serializers.CharField()
    status = serializers.ChoiceField(choices=STATES)
    status_since = serializers.DateTimeField()
    phase = serializers.CharField()
    attempt = serializers.IntegerField()
    rebuilds = serializers.IntegerField()
    node = serializers.CharField(allow_null=True)
    reason = ReasonShape(allow_null=True)
    awaited = AwaitedShape(allow_null=True)
    summary = serializers.CharField(help_text="of a pending task: all nodes' words in short; empty: one fits")
    line = LineShape(allow_null=True, help_text="of a pending task")
    gave_way_at = serializers.DateTimeField(
        allow_null=True, help_text="of a pending task: when work of a higher priority took its place"
    )
    kept_until = serializers.DateTimeField(
        allow_null=True, help_text="of a pending task: room on a node is kept for it until then"
    )
    loans = LoanOfTaskShape(many=True, help_text="open ones")
    nodes = NodeWordShape(many=True, help_text="of a pending task; the nearest misses first")
    nodes_left_out = serializers.IntegerField()
    last_error = LastErrorShape(allow_null=True)
    log_lines = serializers.ListField(child=serializers.CharField())
    advice = AdviceShape(many=True)


class ExplanationShape(Shape):
    id = serializers.CharField()
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=STATES)
    status_since = serializers.DateTimeField()
    reason = ReasonShape(allow_null=True)
    awaited = AwaitedShape(allow_null=True)
    warnings = ReasonShape(many=True)
    advice = AdviceShape(many=True)
    tasks = ExplainedTaskShape(many=True)


class GroupExplain(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = ExplanationShape
    pagination_class = None

    @extend_schema(tags=["services"], operation_id="explain_service", responses=ExplanationShape)
    def get(self, request: Request, group_id: str) -> Response:
        """Why it is in its state, what it waits for until when, what each node says, what to do."""
        viewer = viewer_of(request.user)
        return Response(explain(viewer, work.group_by_id(viewer, group_id), now=utc_now()))
