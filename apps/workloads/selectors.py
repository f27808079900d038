"""Reads of the work records; what people read starts with the viewer's scope."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Sum

from agent.contract.codes import Code
from agent.contract.messages import DesiredTask, SleepOrder
from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from agent.engines.catalog import engine_from_image
from apps.fleet.models import Node, Port
from apps.tenants import scope
from apps.tenants.models import Tenant
from apps.tenants.scope import Viewer
from apps.workloads.models import CardClaim, Claim, Event, Lend, Loan, Reservation, Task, TaskGroup
from apps.workloads.policy.moves import ENDED, RUNS_ON_NODE, is_falling_asleep
from apps.workloads.policy.pipelines import HEAD, MEETING_PORT
from apps.workloads.policy.templates import Template, pick

ENGINE_LABEL = "heteroflow.engine"

# Claims of attempts that are on their way out: what they hold comes free by itself.
LEAVING = (
    ~Q(attempt=F("task__attempt"))
    | Q(task__state__in=[*ENDED, State.PENDING, State.STOPPING])
    | Q(task__state=State.DRAINING, task__desired=Desired.STOP)
)


def groups(viewer: Viewer) -> QuerySet[TaskGroup]:
    """Groups that the viewer may read and nobody deleted."""
    return scope.visible(viewer, TaskGroup.objects.filter(deleted_at__isnull=True))


def tasks(viewer: Viewer) -> QuerySet[Task]:
    """Tasks of those groups."""
    rows = Task.objects.filter(group__deleted_at__isnull=True)
    return scope.visible(viewer, rows, tenant="group__tenant", creator="group__created_by")


def events(viewer: Viewer) -> QuerySet[Event]:
    """Events of those groups, oldest first."""
    rows = Event.objects.filter(group__deleted_at__isnull=True)
    return scope.visible(viewer, rows, tenant="group__tenant", creator="group__created_by")


def group_by_id(viewer: Viewer, public_id: str, *, manage: bool = False) -> TaskGroup:
    """One group. Raises NotFound, or Forbidden where it is readable but `manage` is asked for."""
    get = scope.get_manageable if manage else scope.get_visible
    return get(viewer, TaskGroup.objects.filter(deleted_at__isnull=True), public_id)


def task_by_id(viewer: Viewer, public_id: str, *, manage: bool = False) -> Task:
    """One task. Raises NotFound, or Forbidden as `group_by_id`."""
    get = scope.get_manageable if manage else scope.get_visible
    rows = Task.objects.select_related("group__tenant", "node").filter(group__deleted_at__isnull=True)
    return get(viewer, rows, public_id, tenant="group__tenant", creator="group__created_by")


def waiting() -> QuerySet[Task]:
    """Tasks that wait for a place."""
    return Task.objects.filter(state=State.PENDING, desired=Desired.RUN, group__deleted_at__isnull=True)


def waiting_in_order() -> QuerySet[Task]:
    """The same in the order in which they are looked at (SCHED-02): where fair share is
    on, tenants take turns within a priority, so that this is the order of each tenant's own."""
    return waiting().order_by("-group__priority", "created_at", "pk")


@dataclass(frozen=True)
class PlaceInLine:
    """The `position`-th (1 = next) of so many that wait, of all tenants together."""

    position: int
    waiting: int


def find_places_in_line(tasks: Iterable[Task]) -> dict[int, PlaceInLine]:
    """Where these stand among all that wait, by row id; one statement, none where there are none."""
    wanted = {task.pk for task in tasks}
    if not wanted:
        return {}
    line = list(waiting_in_order().values_list("pk", flat=True))
    return {pk: PlaceInLine(place, len(line)) for place, pk in enumerate(line, start=1) if pk in wanted}


def choose_engine(asked: str, labels: Mapping[str, str], image: str) -> str:
    """The engine that was asked for, else the group's label, else read from the image; "" for none
    (ENG-02)."""
    return str(asked or labels.get(ENGINE_LABEL) or engine_from_image(image) or "")


def template_of(task: Task) -> Template:
    """What a task runs now: its own image and engine, or those of the template that it has come to."""
    own = Template(task.image, task.engine, tuple(task.command), task.gpu_type)
    return pick(own, task.group.inference_templates, task.template_index)


def engine_of(task: Task) -> str:
    """The engine of a task."""
    now = template_of(task)
    return choose_engine(now.engine, task.group.labels, now.image)


def is_pipeline(group: TaskGroup) -> bool:
    """Whether a group's tasks are the stages of one pipeline (PAR-03)."""
    return group.parallelism == Parallelism.PIPELINE_PARALLEL


def is_exchanged(group: TaskGroup) -> bool:
    """Whether a task can leave its node while another one takes its place (LIFE-09): that of a service, but
    no stage, without which its pipeline serves nobody."""
    return group.task_type == TaskType.INFERENCE and not is_pipeline(group)


def stages_of(task: Task) -> list[Task]:
    """The task alone, or all stages of its pipeline, the head first: they start, sleep and end together."""
    if not is_pipeline(task.group):
        return [task]
    same = Task.objects.filter(group=task.group_id, generation=task.generation)
    return list(same.select_related("group__tenant", "node").order_by("rank"))


def lent_cards() -> set[tuple[int, int]]:
    """(The borrower's claim, the card), by row ids, of all loans that are open: few, in the whole fleet."""
    return set(Loan.objects.filter(ended_at__isnull=True).values_list("borrower_id", "card__card_id"))


def kept_cards(now: datetime) -> QuerySet[Any]:
    """Cards on which room is kept for tasks that wait (SCHED-11), a row for each of a `reservation`'s."""
    return Reservation.cards.through.objects.filter(
        reservation__until__gt=now, reservation__task__state=State.PENDING
    )


def lendable_shares() -> QuerySet[CardClaim]:
    """Shares of cards that training may borrow now (SHARE-04): of services that are known to sleep, were not
    asked to wake, and may lend what they have not lent already."""
    lent = Loan.objects.filter(card=OuterRef("pk"), ended_at__isnull=True)
    return (
        CardClaim.objects.filter(
            ~Exists(lent),
            claim__released_at__isnull=True,
            claim__attempt=F("claim__task__attempt"),
            claim__node=F("claim__task__node"),
            claim__task__state=State.SLEEPING,
            claim__task__desired=Desired.SLEEP,
            claim__task__retired_at__isnull=True,
            claim__task__group__deleted_at__isnull=True,
            claim__task__group__tenant__lends=True,
        )
        .exclude(claim__task__group__lend=Lend.NEVER)
        .exclude(claim__task__reason_code=Code.SLEEP_UNCONFIRMED)
    )


# What an order depends on; the rest of a task, secrets among it, is not read for it.
_ORDERED_BY = ("public_id", "attempt", "state", "phase", "desired", "node_id", "left_table", "rank")


def desired_of(node: Node) -> list[DesiredTask]:
    """What the server wants of a node, from its live claims: every attempt that may exist there."""
    claims = (
        Claim.objects.filter(node=node, released_at__isnull=True)
        .select_related("task__group")
        .only("attempt", "node_id", "task__group__parallelism", *(f"task__{name}" for name in _ORDERED_BY))
    )
    return [
        DesiredTask(
            task_id=claim.task.public_id,
            attempt=claim.attempt,
            desired=Desired.RUN if _is_wanted(claim) else Desired.STOP,
            stop_grace_seconds=settings.STOP_GRACE_S,
            sleep=_sleep_order(claim.task) if _is_to_sleep(claim) else None,
        )
        for claim in claims
    ]


def _is_wanted(claim: Claim) -> bool:
    task = claim.task
    return claim.attempt == task.attempt and task.state in RUNS_ON_NODE and not _is_to_sleep(claim)


def _is_to_sleep(claim: Claim) -> bool:
    """Asleep, or on its way there; while it is wanted there: one without a place is only to be removed."""
    task = claim.task
    asleep = task.state == State.SLEEPING and task.node_id == claim.node_id
    falling = is_falling_asleep(State(task.state), Phase(task.phase), Desired(task.desired))
    return claim.attempt == task.attempt and (asleep or falling)


def behind_head_s() -> float:
    """For how long a stage behind a pipeline's head goes on at most, while the head is put to sleep."""
    return settings.SLEEP_DRAIN_S + settings.STOP_DEADLINE_S


def _sleep_order(task: Task) -> SleepOrder:
    behind = task.rank != HEAD and is_pipeline(task.group)
    return SleepOrder(
        drain_seconds=behind_head_s() if behind else settings.SLEEP_DRAIN_S,
        settle_seconds=settings.SLEEP_SETTLE_S,
        quiet=task.left_table is None,
    )


@dataclass(frozen=True)
class ReadyReplica:
    """One replica that may get requests. `dial` is how its node said that it is reached;
    `node_secret_sha256` is what the key of the node's door is derived from, `node_skew_s` by how much its
    clock is ahead of ours. `own_command`: somebody's own command starts it and names its model."""

    group_id: int
    task_id: str
    attempt: int
    port: int
    engine: str
    model_name: str
    dial: Mapping[str, Any]
    node_secret_sha256: str = field(repr=False)
    node_skew_s: float = 0.0
    own_command: bool = False


def ready_replicas() -> list[ReadyReplica]:
    """Running and ready tasks with a mapped port, ordered by group and rank (LIFE-08)."""
    rows = (
        Task.objects.filter(
            state=State.RUNNING, phase=Phase.READY, node__isnull=False, group__deleted_at__isnull=True
        )
        .select_related("group", "node__liveness")
        .order_by("group_id", "rank")
    )
    found = list(rows)
    first_port: dict[tuple[str, int], int] = {}
    for owner, attempt, number in (
        Port.objects.filter(owner__in=[task.public_id for task in found])
        .exclude(container_port=MEETING_PORT)
        .order_by("-container_port")
        .values_list("owner", "attempt", "number")
    ):
        first_port[owner, attempt] = number
    return [
        ReadyReplica(
            group_id=task.group_id,
            task_id=task.public_id,
            attempt=task.attempt,
            port=first_port[task.public_id, task.attempt],
            engine=engine_of(task),
            model_name=task.group.model_name,
            dial=task.node.dial,
            node_secret_sha256=task.node.secret_sha256,
            node_skew_s=task.node.liveness.door_skew_s if hasattr(task.node, "liveness") else 0.0,
            own_command=bool(template_of(task).command),
        )
        for task in found
        if task.node is not None and (task.public_id, task.attempt) in first_port
    ]


def unreachable_tasks(group: TaskGroup) -> list[Task]:
    """Those that run but have no port, so that no call can be sent to them (GW-03); from `group.tasks`."""
    return [task for task in group.tasks.all() if task.state == State.RUNNING and not task.ports]


def dozing_groups() -> set[int]:
    """Groups with a replica that has left the routes to sleep and may still be called back (SLEEP-06)."""
    dozing = Task.objects.filter(state=State.DRAINING, phase=Phase.READY).exclude(desired=Desired.STOP)
    return set(dozing.values_list("group_id", flat=True))


def sleeping_groups() -> set[int]:
    """Groups that serve nobody until a person wakes them: a replica sleeps and was not asked to wake, and
    none is on its way."""
    sleeps = Q(state=State.SLEEPING, desired=Desired.SLEEP)
    over = Q(state__in=(State.STOPPED, State.STOPPING, State.COMPLETED)) | Q(desired=Desired.STOP)
    coming = Task.objects.exclude(sleeps | over).values("group")
    return set(Task.objects.filter(sleeps).exclude(group__in=coming).values_list("group_id", flat=True))


@dataclass(frozen=True)
class Counts:
    """What a tenant has: groups not deleted; replicas and cards that are not stopped for good."""

    gpus: int
    task_groups: int
    replicas: int


# Tasks that hold nothing of a quota: those that are stopped for good, and of a drain's pair the one that
# nobody asked for. A pair counts as one, so that an operator may empty a node at a tenant's limit.
NOT_COUNTED = (
    Q(state__in=[State.STOPPED, State.COMPLETED])
    | Q(state=State.FAILED, desired=Desired.STOP)
    | Q(replaces__isnull=False)
    | Q(retired_at__isnull=False)
)


def count_for_quota(tenant: Tenant) -> Counts:
    """Count inside the transaction that holds the tenant's quota row (TEN-07)."""
    live = Task.objects.filter(group__tenant=tenant).exclude(NOT_COUNTED)
    sums = live.aggregate(replicas=Count("pk"), gpus=Sum("gpu_required"))
    live_groups = TaskGroup.objects.filter(tenant=tenant, deleted_at__isnull=True).count()
    return Counts(gpus=sums["gpus"] or 0, task_groups=live_groups, replicas=sums["replicas"])
