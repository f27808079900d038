"""What the addresses of machines take and answer. Tenants are shown no internals of a node."""

from datetime import datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.alerts.models import Alert
from apps.core import texts
from apps.core.serializers import Body
from apps.fleet.models import Card, CardSample, DoorState, JoinToken, Node, NodeSample
from apps.fleet.selectors import has_door, is_online


class CardShape(serializers.ModelSerializer[Card]):
    """Memory in MB (2**20 bytes); null = the card did not answer, never zero."""

    vram_used_mb = serializers.SerializerMethodField()

    class Meta:
        model = Card
        fields = ["uuid", "index", "vendor", "model", "vram_total_mb", "vram_used_mb", "present"]

    def get_vram_used_mb(self, card: Card) -> int | None:
        sample: CardSample | None = getattr(card, "sample", None)
        return sample.vram_used_mb if sample is not None else None


class NodeShape(serializers.ModelSerializer[Node]):
    """A node as its tenants see it."""

    id = serializers.CharField(source="public_id", read_only=True)
    online = serializers.SerializerMethodField()
    engines = serializers.SerializerMethodField()
    cards = CardShape(many=True, read_only=True)

    class Meta:
        model = Node
        fields = ["id", "name", "online", "cordoned", "pool", "labels", "runtime", "engines", "cards"]

    def get_online(self, node: Node) -> bool:
        now: datetime = self.context["now"]
        live = getattr(node, "liveness", None)
        return live is not None and is_online(live.last_seen_at, now)

    def get_engines(self, node: Node) -> list[str]:
        return [str(engine["name"]) for engine in node.engines]


class CardForOperatorShape(CardShape):
    """`foreign_mb` of the used memory belong to no attempt of ours, `foreign` is the process that holds most
    of them; null = that can't be told. Cards of one `link_group` are joined by NVLink or the like, those of
    one `pcie_root` hang on one PCIe root. `quarantined_at`: since then memory of an ended attempt has been
    held there by `held_by` (pid 0 = the driver names nobody), and nothing is placed; `release_asked_at`: its
    agent has yet to follow a release."""

    foreign_mb = serializers.IntegerField(
        source="sample.foreign_mb", read_only=True, allow_null=True, default=None
    )
    foreign = serializers.CharField(source="sample.foreign", read_only=True, allow_null=True, default=None)

    class Meta(CardShape.Meta):
        fields = [
            *CardShape.Meta.fields,
            "foreign_mb",
            "foreign",
            "link_group",
            "pcie_root",
            "quarantined_at",
            "held_by",
            "release_asked_at",
        ]


class LoadShape(serializers.ModelSerializer[NodeSample]):
    """How busy a node's host is, in percent; null = not told, never zero."""

    class Meta:
        model = NodeSample
        fields = ["cpu_percent", "memory_percent", "disk_percent", "sampled_at"]


class NodeAlertShape(serializers.ModelSerializer[Alert]):
    """An open alert about a node; `text` is its sentence."""

    id = serializers.CharField(source="public_id", read_only=True)
    text = serializers.SerializerMethodField()

    class Meta:
        model = Alert
        fields = ["id", "code", "params", "text", "opened_at", "last_at", "times", "acknowledged_at"]

    def get_text(self, alert: Alert) -> str:
        return texts.say(alert.code, alert.params)


class DoorReasonShape(serializers.Serializer[Any]):
    code = serializers.CharField()
    text = serializers.CharField()


class DoorShape(serializers.Serializer[Any]):
    """Whether the server gets through the node's door; `reason` says why not."""

    state = serializers.ChoiceField(choices=DoorState.values)
    since = serializers.DateTimeField(allow_null=True)
    reason = DoorReasonShape(allow_null=True)


class NodeForOperatorShape(NodeShape):
    """A node with what operators need to run it. Times by the server's clock; `clock_skew_s` is the
    node's clock minus ours. `load` is null where nothing was ever told; `volume_prefixes` are the folders
    that it mounts from, null = not told. `inference_cap` bounds its inference containers (null =
    INFERENCE_CAP_PER_GPU for each card, 0 = none)."""

    cards = CardForOperatorShape(many=True, read_only=True)
    allowed_tenants: Any = serializers.SlugRelatedField(many=True, read_only=True, slug_field="slug")
    allowed_groups: Any = serializers.SlugRelatedField(many=True, read_only=True, slug_field="name")
    last_seen_at = serializers.DateTimeField(source="liveness.last_seen_at", read_only=True, default=None)
    clock_skew_s = serializers.FloatField(source="liveness.clock_skew_s", read_only=True, default=None)
    load = LoadShape(source="sample", read_only=True, default=None)
    door = serializers.SerializerMethodField()
    alerts = serializers.SerializerMethodField()

    class Meta(NodeShape.Meta):
        fields = [
            *NodeShape.Meta.fields,
            "duty",
            "duty_since",
            "hostname",
            "agent_version",
            "cpu_count",
            "memory_total_mb",
            "load",
            "inference_cap",
            "volume_prefixes",
            "host_ipc",
            "in_container",
            "images",
            "port_first",
            "port_last",
            "open_to_all",
            "allowed_tenants",
            "allowed_groups",
            "last_seen_at",
            "clock_skew_s",
            "door",
            "alerts",
            "joined_at",
        ]

    @extend_schema_field(NodeAlertShape(many=True))
    def get_alerts(self, node: Node) -> list[dict[str, Any]]:
        found: dict[str, list[Alert]] = self.context["alerts"]
        return [dict(row) for row in NodeAlertShape(found.get(node.public_id, []), many=True).data]

    @extend_schema_field(DoorShape(allow_null=True))
    def get_door(self, node: Node) -> dict[str, Any] | None:
        """Null for a node that is dialled directly."""
        live = getattr(node, "liveness", None)
        if live is None or not has_door(node.dial):
            return None
        code = live.door_reason
        why = {"code": code, "text": texts.say(code)} if code else None
        return {"state": live.door_state, "since": live.door_since, "reason": why}


class LabelsField(serializers.DictField):
    """At most 64 labels: names up to 63 characters, values up to 200."""

    child = serializers.CharField(max_length=200, allow_blank=True)

    def to_internal_value(self, data: Any) -> Any:
        labels: dict[str, str] = super().to_internal_value(data)
        if len(labels) > 64 or any(not 1 <= len(n) <= 63 or not n.isprintable() for n in labels):
            raise serializers.ValidationError("At most 64 labels, each name 1 to 63 printable characters.")
        return labels


class NodeChangesBody(Body):
    """`allowed_tenants` are slugs, `allowed_groups` names of shared groups; each list replaces the
    present one and matters while `open_to_all` is false. `inference_cap` null = INFERENCE_CAP_PER_GPU for
    each card, 0 = no inference (SCHED-06)."""

    name = serializers.CharField(max_length=200, required=False)
    cordoned = serializers.BooleanField(required=False)
    pool = serializers.CharField(max_length=100, allow_blank=True, required=False)
    labels = LabelsField(required=False)
    open_to_all = serializers.BooleanField(required=False)
    inference_cap = serializers.IntegerField(min_value=0, max_value=10_000, allow_null=True, required=False)
    allowed_tenants = serializers.ListField(
        child=serializers.CharField(max_length=50), max_length=1000, required=False
    )
    allowed_groups = serializers.ListField(
        child=serializers.CharField(max_length=100), max_length=1000, required=False
    )


class ReleaseCardsBody(Body):
    """`card` is a card's UUID; without it all cards in quarantine are meant."""

    card = serializers.CharField(max_length=100, required=False)


class CardsReleasedShape(serializers.Serializer[Any]):
    """How many cards; the node's agent ends their quarantine with its next heartbeat."""

    id = serializers.CharField()
    released = serializers.IntegerField()
    next = DoorReasonShape()


class NewJoinTokenBody(Body):
    ttl_s = serializers.IntegerField(required=False)


class JoinTokenOnceShape(serializers.ModelSerializer[JoinToken]):
    """`token` and the line that redeems it: shown in this answer and never again."""

    id = serializers.CharField(source="public_id", read_only=True)
    token = serializers.SerializerMethodField()
    command = serializers.SerializerMethodField()

    class Meta:
        model = JoinToken
        fields = ["id", "token", "command", "expires_at"]

    def get_token(self, token: JoinToken) -> str:
        plain: str = self.context["plain"]
        return plain

    def get_command(self, token: JoinToken) -> str:
        command: str = self.context["command"]
        return command
