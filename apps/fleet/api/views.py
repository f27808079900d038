"""Addresses of nodes and join tokens."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from apps.alerts.selectors import open_alerts_of
from apps.core import scopes, texts
from apps.core.clock import utc_now
from apps.core.errors import Forbidden
from apps.fleet import selectors, services
from apps.fleet.api import shapes
from apps.fleet.models import Node
from apps.tenants.scope import Viewer, viewer_of

_LISTS = ("allowed_tenants", "allowed_groups")


def _shape(viewer: Viewer) -> type[shapes.NodeShape]:
    return shapes.NodeForOperatorShape if viewer.is_operator else shapes.NodeShape


def _rows(viewer: Viewer) -> Any:
    rows = selectors.nodes(viewer).select_related("liveness", "sample").prefetch_related("cards__sample")
    return rows.prefetch_related(*_LISTS) if viewer.is_operator else rows


def _context(viewer: Viewer, nodes: list[Node]) -> dict[str, Any]:
    """What the shapes need besides the rows; alerts are for operators."""
    ids = [node.public_id for node in nodes] if viewer.is_operator else []
    return {"now": utc_now(), "alerts": open_alerts_of(ids)}


class NodeList(GenericAPIView[Any]):
    scope = scopes.TENANT
    queryset = Node.objects.none()  # for the schema; rows come from selectors
    serializer_class = shapes.NodeShape

    @extend_schema(
        tags=["nodes"], operation_id="list_nodes", responses=shapes.NodeForOperatorShape(many=True)
    )
    def get(self, request: Request) -> Response:
        """The nodes that one's tenants may use, without internals; all, in full, for operators."""
        viewer = viewer_of(request.user)
        page = list(self.paginate_queryset(_rows(viewer).order_by("name", "pk")) or [])
        shape = _shape(viewer)(page, many=True, context=_context(viewer, page))
        return self.get_paginated_response(shape.data)


class NodeDetail(GenericAPIView[Any]):
    scope = scopes.TENANT
    serializer_class = shapes.NodeShape
    pagination_class = None

    @extend_schema(tags=["nodes"], operation_id="read_node", responses=shapes.NodeForOperatorShape)
    def get(self, request: Request, node_id: str) -> Response:
        """One node."""
        viewer = viewer_of(request.user)
        return self._answer(viewer, selectors.node_by_id(viewer, node_id).pk)

    @extend_schema(
        tags=["nodes"],
        operation_id="change_node",
        request=shapes.NodeChangesBody,
        responses=shapes.NodeForOperatorShape,
    )
    def patch(self, request: Request, node_id: str) -> Response:
        """Cordon, label, name a node, or say who may use it (operators). What runs there stays."""
        viewer = viewer_of(request.user)
        node = selectors.node_by_id(viewer, node_id)
        if not viewer.is_operator:
            raise Forbidden
        asked = shapes.NodeChangesBody.read(request)
        lists = {name: asked.pop(name, None) for name in _LISTS}
        services.change_node(actor=viewer, node=node, changes=asked, **lists)
        return self._answer(viewer, node.pk)

    @staticmethod
    def _answer(viewer: Viewer, pk: int) -> Response:
        node = _rows(viewer).get(pk=pk)
        return Response(_shape(viewer)(node, context=_context(viewer, [node])).data)


class CardRelease(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = shapes.CardsReleasedShape
    pagination_class = None

    @extend_schema(
        tags=["nodes"],
        operation_id="release_cards",
        request=shapes.ReleaseCardsBody,
        responses={202: shapes.CardsReleasedShape},
    )
    def post(self, request: Request, node_id: str) -> Response:
        """End the quarantine of a node's cards, whatever is held there (operators)."""
        viewer = viewer_of(request.user)
        node = selectors.node_by_id(viewer, node_id)
        if not viewer.is_operator:
            raise Forbidden
        asked = shapes.ReleaseCardsBody.read(request)
        count = services.release_cards(actor=viewer, node=node, uuid=asked.get("card"), now=utc_now())
        code = "cards_released"
        told = {"code": code, "text": texts.say(code, {"cards": count})}
        answer = {"id": node.public_id, "released": count, "next": told}
        return Response(answer, status=status.HTTP_202_ACCEPTED)


class JoinTokens(GenericAPIView[Any]):
    scope = scopes.OPERATOR
    serializer_class = shapes.JoinTokenOnceShape
    pagination_class = None

    @extend_schema(
        tags=["nodes"],
        operation_id="create_join_token",
        request=shapes.NewJoinTokenBody,
        responses={201: shapes.JoinTokenOnceShape},
    )
    def post(self, request: Request) -> Response:
        """A one-time token for one machine, with the line to paste there. Shown once."""
        asked = shapes.NewJoinTokenBody.read(request)
        token, plain = services.create_join_token(
            actor=viewer_of(request.user), ttl_s=asked.get("ttl_s"), now=utc_now()
        )
        context = {"plain": plain, "command": services.join_command(plain)}
        shown = shapes.JoinTokenOnceShape(token, context=context).data
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})
