"""Addresses of node operations (LIFE-09). Each answer says what was done, what is left, what comes next."""

from collections.abc import Callable
from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.core import scopes, texts
from apps.core.clock import utc_now
from apps.core.errors import Forbidden
from apps.fleet import selectors as fleet
from apps.fleet.api.views import NodeDetail as FleetNodeDetail
from apps.fleet.models import Duty, Node
from apps.tenants.scope import Viewer, viewer_of
from apps.upkeep import selectors, services


class LeftShape(serializers.Serializer[Any]):
    """`text` says why it is still there, on a node that is being emptied."""

    task_id = serializers.CharField()
    name = serializers.CharField()
    service = serializers.CharField()
    tenant = serializers.CharField()
    status = serializers.CharField()
    attempt = serializers.IntegerField()
    step = serializers.CharField(
        allow_null=True,
        help_text="on a node being emptied: waiting, starting, switched, stopping or staying",
    )
    why = serializers.CharField(allow_blank=True)
    text = serializers.CharField(allow_blank=True)


class MovedShape(serializers.Serializer[Any]):
    """A service that moved off since the emptying began and has nothing left there."""

    tenant = serializers.CharField()
    service = serializers.CharField()
    step = serializers.CharField()


class ForceShape(serializers.Serializer[Any]):
    """When what is still there is stopped first, whether or not it has a place elsewhere."""

    after_seconds = serializers.IntegerField(
        min_value=0,
        max_value=30 * 86400,
        allow_null=True,
        help_text="from now; 0 = at once, null = never",
    )


class NextShape(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class UpkeepShape(serializers.Serializer[Any]):
    """`changed`: false where the same had been asked before."""

    id = serializers.CharField()
    name = serializers.CharField()
    duty = serializers.ChoiceField(choices=Duty.values)
    since = serializers.DateTimeField(allow_null=True)
    force_at = serializers.DateTimeField(allow_null=True)
    changed = serializers.BooleanField()
    left = LeftShape(many=True)
    done = MovedShape(many=True)
    next = NextShape()


class NodeDeletedShape(serializers.Serializer[Any]):
    id = serializers.CharField()
    deleted = serializers.BooleanField()
    claims_released = serializers.IntegerField()
    next = NextShape()


def _told(code: str, params: dict[str, Any]) -> dict[str, str]:
    return {"code": code, "text": texts.say(code, params)}


def _found(request: Request, node_id: str) -> tuple[Viewer, Node]:
    """Raises NotFound for a node out of sight, Forbidden for who may only see it."""
    viewer = viewer_of(request.user)
    node = fleet.node_by_id(viewer, node_id)
    if not viewer.is_operator:
        raise Forbidden
    return viewer, node


def _answer(node: Node, changed: bool, status_code: int) -> Response:
    left = selectors.work_left(node)
    shown = UpkeepShape(
        {
            "id": node.public_id,
            "name": node.name,
            "duty": node.duty,
            "since": node.duty_since,
            "force_at": node.duty_force_at,
            "changed": changed,
            "left": left,
            "done": [
                {"tenant": tenant, "service": service, "step": selectors.Step.DONE}
                for tenant, service in selectors.work_done(node, left)
            ],
            "next": _told(*selectors.next_step(node, len(left))),
        }
    )
    return Response(shown.data, status=status_code)


class NodeDetail(FleetNodeDetail):
    @extend_schema(
        tags=["nodes"],
        operation_id="delete_node",
        request=None,
        responses=NodeDeletedShape,
        parameters=[OpenApiParameter("force", str, description="the node's name, where it holds claims")],
    )
    def delete(self, request: Request, node_id: str) -> Response:
        """Remove an empty node, or with `force` one that still holds claims (operators)."""
        viewer, node = _found(request, node_id)
        force = request.query_params.get("force", "")
        done = services.delete_node(actor=viewer, node=node, force=force, now=utc_now())
        answer = {
            "id": node.public_id,
            "deleted": True,
            "claims_released": done.released,
            "next": _told("upkeep_deleted", {}),
        }
        return Response(answer)


class NodeWork(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = UpkeepShape
    pagination_class = None

    @extend_schema(tags=["nodes"], operation_id="read_node_work", responses=UpkeepShape)
    def get(self, request: Request, node_id: str) -> Response:
        """What a node is in, and every attempt that still holds room there (operators)."""
        _, node = _found(request, node_id)
        return _answer(node, False, status.HTTP_200_OK)


class _Turn(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = UpkeepShape
    pagination_class = None

    def _turn(self, request: Request, node_id: str, act: Callable[..., bool]) -> Response:
        viewer, node = _found(request, node_id)
        changed = act(actor=viewer, node=node, now=utc_now())
        return _answer(node, changed, status.HTTP_202_ACCEPTED)


class NodeDrain(_Turn):
    @extend_schema(tags=["nodes"], operation_id="drain_node", request=None, responses={202: UpkeepShape})
    def post(self, request: Request, node_id: str) -> Response:
        """Close a node and move its inference elsewhere: each replica serves until another is ready
        (operators)."""
        return self._turn(request, node_id, services.drain_node)


class NodeMaintenance(_Turn):
    @extend_schema(tags=["nodes"], operation_id="maintain_node", request=None, responses={202: UpkeepShape})
    def post(self, request: Request, node_id: str) -> Response:
        """As a drain; besides, its agent takes nothing on and its alerts are held back (operators)."""
        return self._turn(request, node_id, services.maintain_node)


class NodeForce(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = ForceShape
    pagination_class = None

    @extend_schema(
        tags=["nodes"], operation_id="force_node", request=ForceShape, responses={202: UpkeepShape}
    )
    def post(self, request: Request, node_id: str) -> Response:
        """Of a node that is being emptied: stop what is still there first, now or after a while
        (operators)."""
        viewer, node = _found(request, node_id)
        shape = ForceShape(data=request.data)
        shape.is_valid(raise_exception=True)
        after_s = shape.validated_data["after_seconds"]
        changed = services.force_node(actor=viewer, node=node, after_s=after_s, now=utc_now())
        return _answer(node, changed, status.HTTP_202_ACCEPTED)


class NodeResume(_Turn):
    @extend_schema(tags=["nodes"], operation_id="resume_node", request=None, responses={202: UpkeepShape})
    def post(self, request: Request, node_id: str) -> Response:
        """Put a node back into service: drain, maintenance and cordon end (operators)."""
        return self._turn(request, node_id, services.resume_node)
