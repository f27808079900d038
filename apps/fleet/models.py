"""Machines: nodes, cards (what they are), samples (what was measured), ports, join tokens."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from agent.contract.messages import PORT_RANGE
from apps.core.fields import PublicIdField
from apps.tenants.models import SharedGroup, Tenant


class Duty(models.TextChoices):
    """What a node is in (LIFE-09). `drain`: it is being emptied; `maintenance`: besides, it takes
    nothing on and its alerts are held back. Both are closed for new work."""

    SERVICE = "service", _("in service")
    DRAIN = "drain", _("being emptied")
    MAINTENANCE = "maintenance", _("in maintenance")


class Node(models.Model):
    """One GPU machine with one agent (AGENT-01). Measured values never stand here."""

    public_id = PublicIdField(kind="node")
    name = models.CharField(max_length=200)
    machine_id = models.CharField(max_length=100)
    hostname = models.CharField(max_length=255)
    secret_sha256 = models.CharField(max_length=64, editable=False)
    runtime = models.CharField(max_length=20, blank=True, default="")
    agent_version = models.CharField(max_length=50, blank=True, default="")
    contract_version = models.PositiveIntegerField(default=1)
    cordoned = models.BooleanField(default=False)
    duty = models.CharField(max_length=20, choices=Duty.choices, default=Duty.SERVICE)
    duty_since = models.DateTimeField(null=True)
    duty_force_at = models.DateTimeField(null=True)  # from then on what can not be moved is stopped first
    duty_notes = models.JSONField(default=dict)  # by task (public id): why it is still there
    pool = models.CharField(max_length=100, blank=True, default="")
    labels = models.JSONField(default=dict, blank=True)
    open_to_all = models.BooleanField(_("open to all tenants"), default=True)
    allowed_tenants = models.ManyToManyField(Tenant, blank=True, related_name="nodes")
    allowed_groups = models.ManyToManyField(SharedGroup, blank=True, related_name="nodes")
    cpu_count = models.PositiveIntegerField(null=True)
    memory_total_mb = models.PositiveIntegerField(null=True)
    dial = models.JSONField(default=dict)
    engines = models.JSONField(default=list)
    port_first = models.PositiveIntegerField(default=PORT_RANGE[0])
    port_last = models.PositiveIntegerField(default=PORT_RANGE[1])
    # Folders that its agent mounts from (AGENT-05), and whether an engine of several cards gets the host's
    # IPC there (AGENT-06); null = not told.
    volume_prefixes = models.JSONField(null=True)
    host_ipc = models.BooleanField(null=True)
    in_container = models.BooleanField(null=True)  # its agent runs in one (SHARE-03); null = not told
    images = models.JSONField(default=list)  # engines' images that lie there, by name:tag
    # Inference containers at most (SCHED-06); empty = INFERENCE_CAP_PER_GPU for each card, 0 = none.
    inference_cap = models.PositiveIntegerField(null=True, blank=True)
    joined_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class DoorState(models.TextChoices):
    """Whether the server gets through a node's door (AGENT-16)."""

    UNKNOWN = "unknown", _("not dialled yet")
    OPEN = "open", _("open")
    CLOSED = "closed", _("closed")


class Liveness(models.Model):
    """When a node was last heard of, by the server's clock, and whether its door was open when it was
    last dialled; written apart from its Node row. Nodes that are dialled directly have no door: what
    stands here of one means nothing for them."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="liveness")
    incarnation = models.CharField(max_length=64, blank=True, default="")
    incarnation_started_at = models.FloatField(default=0)
    heartbeat_sequence = models.BigIntegerField(default=0)
    report_sequence = models.BigIntegerField(default=0)
    last_seen_at = models.DateTimeField(null=True)
    clock_skew_s = models.FloatField(null=True)
    foreign_ports = models.JSONField(default=list)  # of its range, listened on by nothing of ours
    door_skew_s = models.FloatField(default=0)  # what lines to its door are dated by; moves in steps only
    followed_at = models.DateTimeField(null=True)  # when its address or clock last made a new table
    declared_lost_at = models.DateTimeField(null=True)
    door_state = models.CharField(max_length=10, choices=DoorState.choices, default=DoorState.UNKNOWN)
    door_reason = models.CharField(max_length=50, blank=True, default="")
    door_since = models.DateTimeField(null=True)
    door_checked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.node}: {self.last_seen_at}"


class NodeSample(models.Model):
    """Last measured load of a node's host, in percent; empty = not told, never zero (SCHED-03)."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="sample")
    cpu_percent = models.FloatField(null=True)
    memory_percent = models.FloatField(null=True)
    disk_percent = models.FloatField(null=True)
    sampled_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.node}: {self.cpu_percent} % cpu"


class ModelFile(models.Model):
    """A model that lies on a node, by the path that services name it by: placing prefers such nodes
    (SCHED-03)."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="model_files")
    path = models.CharField(max_length=1000, db_index=True)

    class Meta:
        ordering = ["node", "path"]
        constraints = [models.UniqueConstraint(fields=["node", "path"], name="one_row_a_model_file")]

    def __str__(self) -> str:
        return f"{self.node}: {self.path}"


class Card(models.Model):
    """One accelerator: identity and capacity. `present` is False when it left the heartbeat."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="cards")
    uuid = models.CharField(max_length=100)
    index = models.PositiveIntegerField()
    vendor = models.CharField(max_length=30)
    model = models.CharField(max_length=100)
    vram_total_mb = models.PositiveIntegerField(null=True)
    driver_version = models.CharField(max_length=50, blank=True, default="")
    compute_capability = models.CharField(max_length=10, blank=True, default="")
    mig_capable = models.BooleanField(default=False)
    mps_capable = models.BooleanField(default=False)
    # Cards of a node with the same number are joined by NVLink or the like (null = none, or not told), those
    # of one name hang on one PCIe root ("" = not told).
    link_group = models.PositiveIntegerField(null=True)
    pcie_root = models.CharField(max_length=50, blank=True, default="")
    present = models.BooleanField(default=True)
    # Memory of an ended attempt is held there: nothing is placed until its agent says otherwise.
    quarantined_at = models.DateTimeField(null=True)
    held_by = models.JSONField(default=list)  # pid (0 = not known), used_mb and task_id of each process
    release_asked_at = models.DateTimeField(null=True)  # by an operator; its agent has yet to follow

    class Meta:
        ordering = ["node", "index"]
        constraints = [models.UniqueConstraint(fields=["node", "uuid"], name="one_card_each")]

    def __str__(self) -> str:
        return f"{self.node} #{self.index} {self.model}"


class CardSample(models.Model):
    """Last measured values of a card; empty = the card did not answer, never zero.

    `foreign_mb` of the used memory belong to no attempt of ours, `foreign` is the process that holds most of
    them; `owned_mb` is what each attempt's processes hold, by "task.attempt". Null where the driver does not
    tell whose it is (SCHED-04)."""

    card = models.OneToOneField(Card, on_delete=models.CASCADE, related_name="sample")
    vram_used_mb = models.PositiveIntegerField(null=True)
    foreign_mb = models.PositiveIntegerField(null=True)
    foreign = models.CharField(max_length=100, blank=True, default="")
    owned_mb = models.JSONField(null=True)
    temperature_c = models.IntegerField(null=True)
    utilization_percent = models.IntegerField(null=True)
    sampled_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.card}: {self.vram_used_mb} MB"


class Port(models.Model):
    """A host port that one attempt of a task holds, until its agent confirms the exit (SVC-12).
    `owner` is the task's public id: tasks live above machines."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ports", db_index=False)
    number = models.PositiveIntegerField()
    owner = models.CharField(max_length=40)
    attempt = models.PositiveIntegerField()
    container_port = models.PositiveIntegerField()

    class Meta:
        # `one_owner_a_port` finds the ports of a node, too.
        constraints = [models.UniqueConstraint(fields=["node", "number"], name="one_owner_a_port")]
        indexes = [models.Index(fields=["owner"], name="ports_by_owner")]

    def __str__(self) -> str:
        return f"{self.node}:{self.number}"


class JoinToken(models.Model):
    """A one-time token that lets a machine become a node. Redeemed once; a repeat with the same
    secret hash gives the same node."""

    public_id = PublicIdField(kind="join_token")
    sha256 = models.CharField(max_length=64, unique=True, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    redeemed_at = models.DateTimeField(null=True, editable=False)
    node = models.ForeignKey(Node, null=True, on_delete=models.SET_NULL, editable=False)

    def __str__(self) -> str:
        return self.public_id
