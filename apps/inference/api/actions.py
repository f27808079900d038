"""Addresses that move a service or a task (LIFE-04): each may be repeated, and answers what it did and what
comes next."""

from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.generics import GenericAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from agent.contract.states import Desired, State
from apps.core import scopes
from apps.core.bodies import body_of
from apps.core.clock import utc_now
from apps.core.errors import FieldError, Invalid
from apps.inference import selectors, services
from apps.inference.api import shapes
from apps.inference.validation.replicas import read_scale_body
from apps.tenants.scope import Viewer, viewer_of
from apps.workloads import selectors as work
from apps.workloads.models import Task, TaskGroup
from apps.workloads.policy.moves import is_wake_requested
from apps.workloads.services import Act, Did, said


class Acting(GenericAPIView[Any]):
    """What these addresses share."""

    scope = scopes.TENANT
    pagination_class = None


class GroupStop(Acting):
    serializer_class = shapes.StoppedShape

    @extend_schema(
        tags=["services"], operation_id="stop_service", request=None, responses={202: shapes.StoppedShape}
    )
    def post(self, request: Request, group_id: str) -> Response:
        """Stop every task; the service, its route and its endpoint stay."""
        viewer = viewer_of(request.user)
        group = work.group_by_id(viewer, group_id, manage=True)
        done = services.stop_group(actor=viewer, group=group, now=utc_now())
        act = Act(Did.NOTHING, said("nothing_to_stop"), said("next_nothing"))
        if done.moved:
            act = Act(Did.STOPPING, said("stopping_tasks", tasks=done.moved), said("next_node_confirms"))
        return _answer(viewer, group, act, stopping=done.moved, already=done.already)


class GroupStart(Acting):
    serializer_class = shapes.StartedShape

    @extend_schema(
        tags=["services"], operation_id="start_service", request=None, responses={202: shapes.StartedShape}
    )
    def post(self, request: Request, group_id: str) -> Response:
        """Start stopped and failed tasks again, with a fresh count of rebuilds; repeatable."""
        viewer = viewer_of(request.user)
        group = work.group_by_id(viewer, group_id, manage=True)
        started = services.start_group(actor=viewer, group=group, now=utc_now())
        act = Act(Did.NOTHING, said("nothing_to_start"), said("next_nothing"))
        if started:
            act = Act(Did.STARTING, said("starting_tasks", tasks=started), said("next_is_placed"))
        return _answer(viewer, group, act, starting=started)


class GroupScale(Acting):
    serializer_class = shapes.ScaledShape

    @extend_schema(
        tags=["services"],
        operation_id="scale_service",
        request=shapes.ScaleBody,
        responses={202: shapes.ScaledShape},
    )
    def put(self, request: Request, group_id: str) -> Response:
        """Give the service so many replicas. Those added are its creator's; of those taken away, one that
        serves ends its running calls first, and what does not serve goes first. 0 leaves one asleep."""
        viewer = viewer_of(request.user)
        group = work.group_by_id(viewer, group_id, manage=True)
        replicas = read_scale_body(body_of(request))
        act = services.scale_service(actor=viewer, group=group, replicas=replicas, now=utc_now())
        group = work.group_by_id(viewer, group_id)
        return _answer(viewer, group, act, replicas=selectors.describe(viewer, group)["replicas"])


class TaskSleep(Acting):
    serializer_class = shapes.TaskActShape

    @extend_schema(
        tags=["services"], operation_id="sleep_task", request=None, responses={202: shapes.TaskActShape}
    )
    def post(self, request: Request, task_id: str) -> Response:
        """Put a replica to sleep: its running calls end, its container stops, its place stays reserved."""
        viewer = viewer_of(request.user)
        task = work.task_by_id(viewer, task_id, manage=True)
        return _task_answer(viewer, task, services.sleep_task(actor=viewer, task=task, now=utc_now()))


class TaskWake(Acting):
    serializer_class = shapes.WokenShape

    @extend_schema(
        tags=["services"],
        operation_id="wake_task",
        request=None,
        responses={200: shapes.WokenShape, 202: shapes.WokenShape},
        parameters=[
            OpenApiParameter(
                "wait",
                float,
                description="seconds to wait until it serves; 0: none, absent: WAKE_WAIT_S",
            )
        ],
    )
    def post(self, request: Request, task_id: str) -> Response:
        """Wake a replica. 200: it serves, or the wake failed; 202: it goes on, see `next`."""
        viewer = viewer_of(request.user)
        wait_s = _wait_asked(request)
        task = work.task_by_id(viewer, task_id, manage=True)
        act = services.wake_task(actor=viewer, task=task, now=utc_now())
        act = services.wait_awake(task, act, wait_s=wait_s)
        fresh = work.task_by_id(viewer, task_id)
        failed = act.did is Did.FAILED
        error = selectors.describe_one_task(viewer, fresh)["last_error"] if failed else None
        over = act.did in (Did.SERVING, Did.FAILED)
        return _task_answer(viewer, fresh, act, status.HTTP_200_OK if over else None, last_error=error)


def _wait_asked(request: Request) -> float:
    text, limit = request.query_params.get("wait", ""), settings.WAKE_WAIT_S
    if not text:
        return float(limit)
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= limit:
        raise Invalid([FieldError("wait", "out_of_range", text[:50], {"min": 0, "max": limit})])
    return wait_s


class TaskStop(Acting):
    serializer_class = shapes.TaskActShape

    @extend_schema(
        tags=["services"], operation_id="stop_task", request=None, responses={202: shapes.TaskActShape}
    )
    def post(self, request: Request, task_id: str) -> Response:
        """Stop one task; repeatable."""
        viewer = viewer_of(request.user)
        task = work.task_by_id(viewer, task_id, manage=True)
        return _task_answer(viewer, task, services.stop_task(actor=viewer, task=task, now=utc_now()))


def _task_answer(viewer: Viewer, task: Task, act: Act, code: int | None = None, **more: Any) -> Response:
    task.refresh_from_db()
    wish = is_wake_requested(State(task.state), Desired(task.desired))
    return _answer(viewer, task, act, code, wake_requested=wish, **more)


def _answer(
    viewer: Viewer, row: Task | TaskGroup, act: Act, code: int | None = None, **more: Any
) -> Response:
    row.refresh_from_db()
    safe = selectors.hide_nodes(viewer, [act.why.params])
    told = selectors.tell(act.why.code, safe(act.why.params)) or {}
    answer = {
        "id": row.public_id,
        "status": row.state,
        "did": act.did,
        **told,
        "next": selectors.tell(act.next.code, act.next.params),
        **more,
    }
    return Response(answer, status=code or status.HTTP_202_ACCEPTED)
