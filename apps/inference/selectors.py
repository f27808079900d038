"""What a service is, in one answer (SVC-13): group, tasks, routes, endpoint, warnings.

Owns the shape that API, portal and console show, in the active language. A fixed number of
statements for any number of groups. Scope is the caller's for groups; nodes are filtered here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Prefetch, prefetch_related_objects

from agent.contract.states import Desired, State
from apps.core import texts
from apps.core.clock import utc_now
from apps.fleet import selectors as fleet
from apps.fleet.models import Node
from apps.routing.describing import describe_endpoint, describe_route
from apps.routing.models import InferenceEndpoint
from apps.tenants.scope import Viewer
from apps.workloads.models import CardClaim, Claim, Event, Task, TaskGroup
from apps.workloads.policy.moves import ENDED, is_wake_requested
from apps.workloads.policy.qos import HeldCard, derive_qos
from apps.workloads.selectors import engine_of, is_pipeline, template_of, unreachable_tasks
from apps.workloads.services import Act

Params = Mapping[str, Any]

REPLICA = "replica"
_LIVE_CLAIMS = Claim.objects.filter(released_at__isnull=True).prefetch_related(
    Prefetch("cards", CardClaim.objects.select_related("card__node"))
)
HIDDEN = "-"  # stands for the name of a node that the viewer may not see


@dataclass(frozen=True)
class Sight:
    """What may be told to one viewer: which of the nodes that an answer names, and who holds a card's memory
    beside the platform, which is told to operators alone (SVC-14)."""

    nodes: frozenset[str]
    is_operator: bool

    def name_of(self, node: str) -> str:
        return node if node in self.nodes else HIDDEN

    def safe(self, params: Params) -> dict[str, Any]:
        """Values of a reason without what the viewer may not know."""
        told = {name: value for name, value in params.items() if self.is_operator or name != "process"}
        return {**told, "node": self.name_of(str(told["node"]))} if told.get("node") else told


def describe(viewer: Viewer, group: TaskGroup, *, now: datetime | None = None) -> dict[str, Any]:
    """One service. `now` is what its uptime counts to."""
    return describe_many(viewer, [group], now=now)[0]


def describe_many(
    viewer: Viewer, groups: Iterable[TaskGroup], *, now: datetime | None = None
) -> list[dict[str, Any]]:
    """Services in the order given."""
    rows = list(groups)
    prefetch_related_objects(
        rows,
        "tenant",
        "created_by",
        Prefetch("tasks", Task.objects.select_related("node").order_by("generation", "rank")),
        Prefetch("tasks__claims", _LIVE_CLAIMS, to_attr="live_claims"),
        "routes",
        Prefetch("endpoint", InferenceEndpoint.objects.select_related("api_key")),
        "warning_rows",
    )
    sight = _sight_of(
        viewer, {name for group in rows for task in group.tasks.all() for name in _named_by(task)}
    )
    return [_describe(group, sight, now or utc_now()) for group in rows]


def _describe(group: TaskGroup, sight: Sight, now: datetime) -> dict[str, Any]:
    tasks = [task for task in group.tasks.all() if task.generation == group.current_generation]
    every = list(group.tasks.all())
    wanted = [task for task in every if role_of(task) == REPLICA]
    first = tasks[0] if tasks else None
    engine = engine_of(first) if first else ""
    count = _whole if is_pipeline(group) else sum
    return {
        "id": group.public_id,
        "tenant": group.tenant.slug,
        "created_by": group.created_by.get_username(),
        "created_at": group.created_at,
        "name": group.name,
        "model_name": group.model_name,
        "status": group.state,
        "status_since": group.state_since,
        "reason": _reason_of_group(group, tasks, sight),
        "replicas": {
            "current": count(task.state not in ENDED for task in wanted),
            "ready": count(task.state == State.RUNNING for task in wanted),
            "min": group.min_replicas,
            "max": group.max_replicas,
        },
        "world_size": group.world_size,
        "task_type": group.task_type,
        "gpus": sum(task.gpu_required for task in tasks if task in wanted),
        "parallelism": group.parallelism,
        "engine": engine,
        "image": template_of(first).image if first else "",
        "model_path": first.model_path if first else "",
        "routes": [describe_route(route, engine) for route in group.routes.all()],
        "endpoint": _describe_endpoint_of(group),
        "autoscale": bool(group.scale_policy.get("enabled")),
        "enable_api": group.enable_api,
        "uptime_seconds": _uptime(every, now),
        "warnings": _warnings(group),
        "current_generation": group.current_generation,
        "rolling_update_state": group.rolling_update_state,
        "rolling_update_message": group.rolling_update_message,
        "idle_timeout_minutes": group.idle_timeout_minutes,
        "gpu_memory_utilization": group.gpu_memory_utilization,
        "priority": group.priority,
        "preemptible": group.preemptible,
        "lend": group.lend,
        "labels": group.labels,
        "health_check": group.health_check,
        "scale_policy": group.scale_policy,
        "schedule_window": group.schedule_window,
        "inference_templates": group.inference_templates,
        "tasks": [describe_task(task, sight) for task in every],
    }


def describe_task(task: Task, sight: Sight) -> dict[str, Any]:
    """One task, as far as `sight` goes; the name of a node out of it is HIDDEN, no node is None."""
    return {
        "id": task.public_id,
        "group_id": task.group.public_id,
        "name": task.name,
        "rank": task.rank,
        "role": role_of(task),
        "generation": task.generation,
        "status": task.state,
        "status_since": task.state_since,
        "phase": task.phase,
        "attempt": task.attempt,
        "rebuilds": task.rebuilds,
        "template": task.template_index,
        "gpu_required": task.gpu_required,
        "gpu_type": task.gpu_type,
        "ports": task.ports,
        "estimated_gpu_memory_mb": task.estimated_gpu_memory_mb,
        "qos": _qos(task),
        "node": None if task.node is None else sight.name_of(task.node.name),
        "running_since": task.running_since,
        "wake_requested": is_wake_requested(State(task.state), Desired(task.desired)),
        "reason": tell(task.reason_code, sight.safe(task.reason_params)),
        "refusals": [
            tell(str(refusal.get("code", "")), sight.safe(refusal.get("params") or {}))
            for refusal in task.refusals
        ],
        "last_error": _last_error(task, sight),
    }


def role_of(task: Task) -> str:
    """What a task is to its service: one of its replicas; while a node is emptied, the replacement of one
    that still serves; or one that was replaced and is on its way out (LIFE-09)."""
    if task.retired_at is not None:
        return "retired"
    return REPLICA if task.replaces_id is None else "replacement"


def describe_one_task(viewer: Viewer, task: Task) -> dict[str, Any]:
    """One task that was read by itself."""
    prefetch_related_objects([task], Prefetch("claims", _LIVE_CLAIMS, to_attr="live_claims"))
    return describe_task(task, _sight_of(viewer, _named_by(task)))


def describe_events(viewer: Viewer, events: Iterable[Event]) -> list[dict[str, Any]]:
    """Moves and notable moments, in the order given (LIFE-01, LIFE-06)."""
    rows = list(events)
    sight = _sight_of(viewer, {str(row.params["node"]) for row in rows if row.params.get("node")})
    return [
        {
            "at": row.at,
            "task": row.task.public_id if row.task else None,
            "attempt": row.attempt,
            "from": row.from_state,
            "to": row.to_state,
            "reason": tell(row.code, sight.safe(row.params)),
            "actor": row.actor,
        }
        for row in rows
    ]


def hide_nodes(viewer: Viewer, said: Iterable[Params]) -> Callable[[Params], dict[str, Any]]:
    """What makes values of these reasons safe to show: nodes that the viewer may not see go without name."""
    sight = _sight_of(viewer, {str(params["node"]) for params in said if params.get("node")})
    return sight.safe


def _named_by(task: Task) -> set[str]:
    """Names of nodes that an answer about this task would show."""
    said = [task.reason_params, task.last_error.get("params"), *(one.get("params") for one in task.refusals)]
    names = [(params or {}).get("node") for params in said]
    return {str(name) for name in [*names, task.node.name if task.node else None] if name}


def _sight_of(viewer: Viewer, names: set[str]) -> Sight:
    """What the viewer may be told where these nodes are named. A name that a node out of sight bears too is
    not told. One of a deleted node is: it is told of tasks in the viewer's sight only, so it was open to
    their tenant."""
    if viewer.is_operator or not names:
        return Sight(frozenset(names), is_operator=viewer.is_operator)
    out_of_sight = Node.objects.filter(name__in=names).exclude(pk__in=fleet.nodes(viewer).values("pk"))
    return Sight(frozenset(names - set(out_of_sight.values_list("name", flat=True))), is_operator=False)


def tell(code: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """A reason with its sentence in the active language; None for no reason."""
    return {"code": code, "params": dict(params), "text": texts.say(code, params)} if code else None


def told(viewer: Viewer, acts: Iterable[Act], nothing: str) -> list[str]:
    """What actions did and what comes next, as sentences, each once; that of `nothing` where none did."""
    done = list(acts)
    safe = hide_nodes(viewer, [act.why.params for act in done])
    sentences = [
        f"{texts.say(act.why.code, safe(act.why.params))} {texts.say(act.next.code, act.next.params)}"
        for act in done
    ]
    return list(dict.fromkeys(sentences)) or [texts.say(nothing)]


def _whole(stages: Iterable[bool]) -> int:
    """A pipeline is one replica, of which every stage counts."""
    told = list(stages)
    return int(bool(told) and all(told))


def _reason_of_group(group: TaskGroup, tasks: list[Task], sight: Sight) -> dict[str, Any] | None:
    """The reason of the first task that is in the group's own state, else of the first one."""
    speaking = next((task for task in tasks if task.state == group.state), tasks[0] if tasks else None)
    if speaking is None:
        return None
    return tell(speaking.reason_code, sight.safe(speaking.reason_params))


def _describe_endpoint_of(group: TaskGroup) -> dict[str, Any] | None:
    endpoint = getattr(group, "endpoint", None)
    return describe_endpoint(endpoint, group) if endpoint is not None else None


def _uptime(tasks: list[Task], now: datetime) -> int | None:
    """Whole seconds since the first replica that runs now began; None while none runs."""
    began = [task.running_since for task in tasks if task.state == State.RUNNING and task.running_since]
    return max(0, int((now - min(began)).total_seconds())) if began else None


def _warnings(group: TaskGroup) -> list[dict[str, Any]]:
    """What is written on the group, and settings that are kept but that nothing acts on yet."""
    found = [tell(row.code, row.params) for row in group.warning_rows.all()]
    waiting = {
        "scale_policy": bool(group.scale_policy.get("enabled")),
        "schedule_window": bool(group.schedule_window.get("enabled")),
    }
    found += [tell("not_in_effect_yet", {"field": name}) for name, on in waiting.items() if on]
    if group.routes.all():
        found += [tell("task_without_port", {"name": task.name}) for task in unreachable_tasks(group)[:5]]
    return [warning for warning in found if warning is not None]


def _qos(task: Task) -> str | None:
    """Of the cards that its present attempt holds (SHARE-03)."""
    held = [
        HeldCard(
            vendor=share.card.vendor,
            percent=share.percent,
            mig_capable=share.card.mig_capable,
            mps_capable=share.card.mps_capable,
            in_container=share.card.node.in_container,
        )
        for claim in task.live_claims  # type: ignore[attr-defined]  # put there by the prefetch
        if claim.attempt == task.attempt
        for share in claim.cards.all()
    ]
    return derive_qos(held)


def _last_error(task: Task, sight: Sight) -> dict[str, Any] | None:
    if not task.last_error:
        return None
    error = dict(task.last_error)
    params = sight.safe(error.get("params") or {})
    return {**error, "params": params, "text": texts.say(str(error.get("code", "")), params)}
