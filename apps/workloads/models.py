"""Groups, tasks, claims, events. States are written by `state.py` alone."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core.fields import EncryptedJSONField, EncryptedTextField, PublicIdField
from apps.fleet.models import Card, Node
from apps.tenants.models import Tenant


class Lend(models.TextChoices):
    """Whether training may borrow the cards of a sleeping service (SHARE-04). `default`: unless calls wake
    it."""

    DEFAULT = "default", _("unless calls wake it")
    ALLOWED = "allowed", _("yes")
    NEVER = "never", _("no")


def choices(kind: type) -> list[tuple[str, str]]:
    return [(item.value, item.value) for item in kind]  # type: ignore[attr-defined]


class TaskGroup(models.Model):
    """A service, training run or container set (SVC-01, -02). Its state is derived (LIFE-05)."""

    public_id = PublicIdField(kind="group")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="task_groups")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    name = models.CharField(max_length=200)
    model_name = models.CharField(max_length=200)
    task_type = models.CharField(max_length=20, choices=choices(TaskType))
    parallelism = models.CharField(max_length=20, choices=choices(Parallelism))
    world_size = models.PositiveIntegerField(default=1)
    min_replicas = models.PositiveIntegerField(default=1)
    max_replicas = models.PositiveIntegerField(default=1)
    enable_api = models.BooleanField(default=False)
    idle_timeout_minutes = models.PositiveIntegerField(default=0)
    # When a gateway was last asked for it; kept up now and then, and where the gateway's own word goes.
    asked_at = models.DateTimeField(null=True)
    gpu_memory_utilization = models.PositiveIntegerField(null=True)
    priority = models.IntegerField(default=0)
    preemptible = models.BooleanField(default=False)
    lend = models.CharField(max_length=10, choices=Lend.choices, default=Lend.DEFAULT)
    labels = models.JSONField(default=dict)
    health_check = models.JSONField(default=dict)
    scale_policy = models.JSONField(default=dict)
    schedule_window = models.JSONField(default=dict)
    inference_templates = models.JSONField(default=list)
    current_generation = models.PositiveIntegerField(default=1)
    rolling_update_state = models.CharField(max_length=20, blank=True, default="")
    rolling_update_message = models.TextField(blank=True, default="")
    state = models.CharField(max_length=20, choices=choices(State), default=State.PENDING)
    state_since = models.DateTimeField()
    version = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()
    # Set when deletion is asked for: hidden from its people, gone once every task is confirmed gone.
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], condition=Q(deleted_at__isnull=True), name="one_live_group_a_name"
            )
        ]

    def __str__(self) -> str:
        return self.name


class GroupWarning(models.Model):
    """Something about a group that its people should mend; it did not stop the creation (SVC-05)."""

    group = models.ForeignKey(TaskGroup, on_delete=models.CASCADE, related_name="warning_rows")
    code = models.CharField(max_length=50)
    params = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.code


class Task(models.Model):
    """One container or engine process. `attempt` rises at each placement (LIFE-08)."""

    public_id = PublicIdField(kind="task")
    # Here and below: no index of its own where a constraint's begins with the field, nor the second one that
    # Django gives to indexed text on PostgreSQL. Each of a task's indexes is written at each of its moves.
    group = models.ForeignKey(TaskGroup, on_delete=models.CASCADE, related_name="tasks", db_index=False)
    rank = models.PositiveIntegerField(default=0)
    generation = models.PositiveIntegerField(default=1)
    name = models.CharField(max_length=220)
    # intent
    image = models.CharField(max_length=300)
    engine = models.CharField(max_length=30, blank=True, default="")
    gpu_required = models.PositiveIntegerField(default=1)
    gpu_type = models.CharField(max_length=100, blank=True, default="")
    model_path = models.CharField(max_length=1000, blank=True, default="")
    ports = models.JSONField(default=list)
    env = EncryptedJSONField(default=dict)
    volumes = models.JSONField(default=list)
    command = models.JSONField(default=list)
    kv_offload_gb = models.PositiveIntegerField(null=True)
    estimated_gpu_memory_mb = models.PositiveIntegerField(null=True)
    timeout_seconds = models.PositiveIntegerField(null=True)
    pull_credentials = EncryptedTextField(blank=True, default="")
    # What was asked for last. `stop`: recovery rebuilds nothing. `sleep`: asleep, or on its way there; a
    # sleeping task of which `run` is wanted has been asked to wake and waits for its node or card (LIFE-04).
    desired = models.CharField(max_length=10, choices=choices(Desired), default=Desired.RUN)
    # progress
    state = models.CharField(max_length=20, choices=choices(State), default=State.PENDING)
    state_since = models.DateTimeField()
    deadline_at = models.DateTimeField(null=True)
    version = models.PositiveBigIntegerField(default=0)
    phase = models.CharField(max_length=20, choices=choices(Phase), blank=True, default=Phase.NONE)
    attempt = models.PositiveIntegerField(default=0)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, related_name="tasks")
    reason_code = models.CharField(max_length=50, blank=True, default="")
    reason_params = models.JSONField(default=dict)
    refusals = models.JSONField(default=list)  # [{code, params}]: why no node takes it now
    last_error = models.JSONField(default=dict)  # {code, params, exit_code, log_lines, at}
    rebuilds = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True)  # back-off before the next placement
    # Draining: the published table with which it left the routes; empty once no gateway has a call of it.
    left_table = models.PositiveBigIntegerField(null=True)
    # Its place in the group's template chain, and the nodes (public id: code) that refused to start what
    # stands there: both begin anew when it is started again, the latter also once it ran (RECOV-03).
    template_index = models.PositiveIntegerField(default=0)
    node_refusals = models.JSONField(default=dict)
    running_since = models.DateTimeField(null=True)
    # When it last gave its room to work of higher priority, and when others last did for it (SCHED-11): for
    # PREEMPTION_PAUSE_S it is taken off no second time, and nobody else is taken off for it.
    preempted_at = models.DateTimeField(null=True)
    made_room_at = models.DateTimeField(null=True)
    # When it was asked to wake: those that wait for one card wake in this order (SLEEP-05).
    wake_asked_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    # A drain's pair (LIFE-09): the replacement of a task that serves on a node being emptied, and, once
    # one of the two was chosen, the other: on its way out, never started again, then removed.
    replaces = models.OneToOneField(
        "self", null=True, blank=True, on_delete=models.SET_NULL, related_name="replacement"
    )
    retired_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ["group", "generation", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["group", "generation", "rank"], name="one_task_a_rank")
        ]
        indexes = [models.Index(fields=["state"], name="tasks_by_state")]

    def __str__(self) -> str:
        return self.name


class Claim(models.Model):
    """One placement: this attempt of a task holds room on a node, until its agent confirms that the
    container is gone. `incarnation` is the run of the agent that took it on ("" = nobody yet)."""

    task = models.ForeignKey(Task, on_delete=models.CASCADE, related_name="claims", db_index=False)
    attempt = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="claims")
    incarnation = models.CharField(max_length=64, blank=True, default="")
    claimed_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()
    released_at = models.DateTimeField(null=True)
    # Until when its card time was counted, and whether for good: it is released and counted to its end.
    card_time_until = models.DateTimeField(null=True)
    card_time_done = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["task", "attempt"], name="one_claim_an_attempt")]
        indexes = [
            models.Index(fields=["node"], condition=Q(released_at__isnull=True), name="live_claims"),
            models.Index(fields=["id"], condition=Q(card_time_done=False), name="uncounted_claims"),
        ]

    def __str__(self) -> str:
        return f"{self.task}/{self.attempt} on {self.node}"


class CardClaim(models.Model):
    """What a claim holds of one card: a percentage of it, or (empty) the card alone (SCHED-05)."""

    claim = models.ForeignKey(Claim, on_delete=models.CASCADE, related_name="cards", db_index=False)
    card = models.ForeignKey(Card, on_delete=models.CASCADE, related_name="claims")
    percent = models.PositiveIntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["claim", "card"], name="one_share_a_card")]

    def __str__(self) -> str:
        return f"{self.claim}: {self.card}"


class Loan(models.Model):
    """A sleeping task's share of a card, used by the placement of another task until that is gone from the
    card. The sleeper keeps its claim and does not wake before (SLEEP-05, SHARE-04); it is the claim's task.
    """

    card = models.ForeignKey(CardClaim, on_delete=models.CASCADE, related_name="loans")
    borrower = models.ForeignKey(Claim, on_delete=models.CASCADE, related_name="borrowed")
    since = models.DateTimeField()
    until = models.DateTimeField()  # its borrower is stopped then
    ended_at = models.DateTimeField(null=True)  # the card is back

    class Meta:
        ordering = ["-since", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["card"], condition=Q(ended_at__isnull=True), name="one_loan_a_card_share"
            )
        ]

    def __str__(self) -> str:
        return f"{self.card} to {self.borrower}"


class Reservation(models.Model):
    """Room on cards of a node that others left for a waiting task (SCHED-11): nobody else is placed on it
    until the task is placed or stopped, or the time is up. `percent` None = each card alone."""

    task = models.OneToOneField(Task, on_delete=models.CASCADE, related_name="reservation")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="reservations")
    cards = models.ManyToManyField(Card, related_name="reservations")
    percent = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField()
    until = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"{self.node} for {self.task}"


class Event(models.Model):
    """One move or notable moment of a group or task: from, to, reason, actor, time (LIFE-01)."""

    group = models.ForeignKey(TaskGroup, on_delete=models.CASCADE, related_name="events")
    task = models.ForeignKey(Task, null=True, on_delete=models.CASCADE, related_name="events")
    attempt = models.PositiveIntegerField(null=True)
    from_state = models.CharField(max_length=20, blank=True, default="")
    to_state = models.CharField(max_length=20, blank=True, default="")
    code = models.CharField(max_length=50)
    params = models.JSONField(default=dict)
    actor = models.CharField(max_length=100)
    at = models.DateTimeField()

    class Meta:
        ordering = ["at", "pk"]

    def __str__(self) -> str:
        return f"{self.from_state}>{self.to_state} {self.code}"
