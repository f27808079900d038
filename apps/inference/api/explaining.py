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


class NodeWordShape(Shape):
    node = serializers.CharField()
    fits = serializers.BooleanField(help_text="it would take the task now")
    reason = ReasonShape(help_text="the first check that refuses it there, with its numbers")


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
