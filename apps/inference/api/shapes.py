"""Shapes of requests and answers, for the schema. Checking is `validation/`, answering `selectors.py`;
a test holds these against both."""

from typing import Any

from rest_framework import serializers

from agent.contract.states import Parallelism, Phase, State, TaskType
from apps.inference.validation.environment import ENV_VALUE_LIMIT
from apps.inference.validation.forms import MAX_REPLICAS_LIMIT, REPLICAS_LIMIT
from apps.inference.validation.health import ENGINE_AWARE, TYPES
from apps.inference.validation.scaling import ACTIONS, METRICS
from apps.routing.api.shapes import EndpointShape, RouteOfGroupShape
from apps.workloads.models import Lend
from apps.workloads.policy.faults import Outcome
from apps.workloads.policy.qos import Qos
from apps.workloads.services import Did


def _values(kind: Any) -> list[str]:
    return [item.value for item in kind]


STATES = _values(State)  # named in the schema by ENUM_NAME_OVERRIDES


class Shape(serializers.Serializer):
    """A shape of the schema."""


# --- requests -------------------------------------------------------------------------------------


class PortBody(Shape):
    container_port = serializers.IntegerField(min_value=1, max_value=65535)
    host_port = serializers.IntegerField(
        min_value=0, max_value=65535, required=False, help_text="0 or absent: from the node's port pool"
    )


class CredentialsBody(Shape):
    username = serializers.CharField(max_length=200)
    password = serializers.CharField(max_length=4000)
    registry = serializers.CharField(max_length=255, required=False)


class WorkerBody(Shape):
    name = serializers.CharField(max_length=200, required=False)
    image = serializers.CharField(max_length=300, help_text="name:tag or name@sha256:digest")
    gpu_required = serializers.IntegerField(min_value=0, max_value=64, required=False, default=1)
    gpu_type = serializers.CharField(max_length=100, required=False, help_text="empty: any card")
    engine = serializers.CharField(max_length=30, required=False, help_text="empty: read from the image")
    model_path = serializers.CharField(max_length=1000, required=False)
    ports = PortBody(many=True, required=False)
    env = serializers.DictField(child=serializers.CharField(max_length=ENV_VALUE_LIMIT), required=False)
    volumes = serializers.ListField(
        child=serializers.CharField(), required=False, help_text="/on/the/node:/in/the/container[:ro]"
    )
    command = serializers.ListField(child=serializers.CharField(), required=False)
    kv_offload_gb = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    estimated_gpu_memory_mb = serializers.IntegerField(min_value=1, required=False)
    timeout_seconds = serializers.IntegerField(min_value=1, required=False)
    pull_credentials = CredentialsBody(required=False, write_only=True)


class HealthCheckShape(Shape):
    type = serializers.ChoiceField(
        choices=(*TYPES, ENGINE_AWARE),
        required=False,
        help_text="engine: http that also knows what its engine says of loading and of its work; by itself "
        "for an engine of the catalog",
    )
    path = serializers.CharField(max_length=500, required=False)
    port = serializers.IntegerField(min_value=0, max_value=65535, required=False)
    interval_seconds = serializers.FloatField(min_value=1, max_value=3600, required=False)
    timeout_seconds = serializers.FloatField(min_value=0.1, max_value=300, required=False)
    unhealthy_threshold = serializers.IntegerField(min_value=1, max_value=100, required=False)
    start_period_seconds = serializers.FloatField(
        min_value=0, max_value=86400, required=False, help_text="absent = 60, 0 = 30; large models: 300"
    )


class MetricShape(Shape):
    name = serializers.ChoiceField(choices=METRICS)
    target_value = serializers.FloatField(min_value=0.001)


class ScalePolicyShape(Shape):
    enabled = serializers.BooleanField(required=False)
    metrics = MetricShape(many=True, required=False)


class ScheduleWindowShape(Shape):
    enabled = serializers.BooleanField(required=False)
    timezone = serializers.CharField(max_length=50, required=False)
    weekdays = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=7), required=False, help_text="1 = Monday"
    )
    start = serializers.CharField(max_length=5, required=False, help_text="HH:MM")
    end = serializers.CharField(max_length=5, required=False, help_text="HH:MM")
    action = serializers.ChoiceField(choices=ACTIONS, required=False)
    replicas = serializers.IntegerField(min_value=0, required=False)


class TemplateShape(Shape):
    image = serializers.CharField(max_length=300)
    engine = serializers.CharField(max_length=30, required=False, help_text="absent: read from the image")
    command = serializers.ListField(child=serializers.CharField(), required=False)
    gpu_type = serializers.CharField(max_length=100, required=False, help_text="absent: as for the task")


class NewGroupBody(Shape):
    tenant = serializers.CharField(
        max_length=50, required=False, help_text="slug; needed by members of several tenants only"
    )
    name = serializers.CharField(max_length=200)
    model_name = serializers.CharField(
        max_length=200, required=False, help_text="what callers send in `model`; absent: the name"
    )
    task_type = serializers.ChoiceField(choices=_values(TaskType), required=False)
    parallelism = serializers.ChoiceField(choices=_values(Parallelism), required=False)
    world_size = serializers.IntegerField(min_value=0, max_value=REPLICAS_LIMIT, required=False)
    min_replicas = serializers.IntegerField(min_value=0, max_value=MAX_REPLICAS_LIMIT, required=False)
    max_replicas = serializers.IntegerField(min_value=1, max_value=MAX_REPLICAS_LIMIT, required=False)
    enable_api = serializers.BooleanField(required=False)
    idle_timeout_minutes = serializers.IntegerField(min_value=0, required=False)
    gpu_memory_utilization = serializers.IntegerField(min_value=1, max_value=100, required=False)
    priority = serializers.IntegerField(required=False, help_text="negative: operators only")
    preemptible = serializers.BooleanField(required=False)
    lend = serializers.ChoiceField(
        choices=Lend.values,
        required=False,
        help_text="whether training may borrow its cards while it sleeps; default: unless calls wake it",
    )
    labels = serializers.DictField(child=serializers.CharField(), required=False)
    health_check = HealthCheckShape(required=False)
    scale_policy = ScalePolicyShape(required=False)
    schedule_window = ScheduleWindowShape(required=False)
    inference_templates = TemplateShape(
        many=True,
        required=False,
        help_text="tried in order where the engine of `task` does not start; they share its environment",
    )
    task = WorkerBody()


# --- answers --------------------------------------------------------------------------------------


class ReasonShape(Shape):
    code = serializers.CharField()
    params = serializers.DictField()
    text = serializers.CharField(help_text="in the caller's language")


class ReplicasShape(Shape):
    current = serializers.IntegerField(help_text="neither stopped nor failed")
    ready = serializers.IntegerField()
    min = serializers.IntegerField()
    max = serializers.IntegerField()


class LastErrorShape(ReasonShape):
    exit_code = serializers.IntegerField(allow_null=True)
    log_lines = serializers.ListField(child=serializers.CharField())
    at = serializers.CharField()


class TaskShape(Shape):
    id = serializers.CharField()
    group_id = serializers.CharField()
    name = serializers.CharField()
    rank = serializers.IntegerField()
    role = serializers.CharField(
        help_text="replica; or, while a node is emptied: replacement, of one that still serves, or retired"
    )
    generation = serializers.IntegerField()
    status = serializers.ChoiceField(choices=STATES)
    status_since = serializers.DateTimeField()
    phase = serializers.ChoiceField(choices=_values(Phase))
    attempt = serializers.IntegerField()
    rebuilds = serializers.IntegerField()
    template = serializers.IntegerField(
        help_text="0 = what was asked for, n = the nth of inference_templates"
    )
    gpu_required = serializers.IntegerField()
    gpu_type = serializers.CharField()
    ports = PortBody(many=True)
    estimated_gpu_memory_mb = serializers.IntegerField(allow_null=True)
    qos = serializers.ChoiceField(
        choices=_values(Qos), allow_null=True, help_text="follows from its cards; empty: it holds none"
    )
    node = serializers.CharField(allow_null=True)
    running_since = serializers.DateTimeField(allow_null=True)
    wake_requested = serializers.BooleanField(help_text="it sleeps, and wakes as soon as it can")
    reason = ReasonShape(allow_null=True)
    refusals = ReasonShape(many=True)
    last_error = LastErrorShape(allow_null=True)


class GroupShape(Shape):
    id = serializers.CharField()
    tenant = serializers.CharField()
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    name = serializers.CharField()
    model_name = serializers.CharField()
    status = serializers.ChoiceField(choices=STATES)
    status_since = serializers.DateTimeField()
    reason = ReasonShape(allow_null=True)
    replicas = ReplicasShape()
    world_size = serializers.IntegerField()
    task_type = serializers.ChoiceField(choices=_values(TaskType))
    gpus = serializers.IntegerField()
    parallelism = serializers.ChoiceField(choices=_values(Parallelism))
    engine = serializers.CharField()
    image = serializers.CharField()
    model_path = serializers.CharField()
    routes = RouteOfGroupShape(many=True)
    endpoint = EndpointShape(allow_null=True)
    autoscale = serializers.BooleanField()
    enable_api = serializers.BooleanField()
    uptime_seconds = serializers.IntegerField(allow_null=True)
    warnings = ReasonShape(many=True)
    current_generation = serializers.IntegerField()
    rolling_update_state = serializers.CharField()
    rolling_update_message = serializers.CharField()
    idle_timeout_minutes = serializers.IntegerField()
    gpu_memory_utilization = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField()
    preemptible = serializers.BooleanField()
    lend = serializers.ChoiceField(choices=Lend.values)
    labels = serializers.DictField(child=serializers.CharField())
    health_check = HealthCheckShape()
    scale_policy = ScalePolicyShape()
    schedule_window = ScheduleWindowShape()
    inference_templates = TemplateShape(many=True)
    tasks = TaskShape(many=True)


class NewGroupShape(GroupShape):
    api_key = serializers.CharField(allow_null=True, help_text="in this answer only")


class DeletedShape(Shape):
    id = serializers.CharField()
    deleted = serializers.BooleanField()
    already = serializers.BooleanField()
    tasks_stopping = serializers.IntegerField()
    routes_removed = serializers.IntegerField()
    endpoint_removed = serializers.BooleanField()
    next = ReasonShape()


class ActShape(Shape):
    """What an action did and what comes next; a repeat did nothing and says so."""

    id = serializers.CharField()
    status = serializers.ChoiceField(choices=STATES)
    did = serializers.ChoiceField(choices=_values(Did))
    code = serializers.CharField(help_text="why it did that")
    params = serializers.DictField()
    text = serializers.CharField(help_text="the code, in the caller's language")
    next = ReasonShape()


class TaskActShape(ActShape):
    wake_requested = serializers.BooleanField(help_text="it sleeps, and wakes as soon as it can")


class WokenShape(TaskActShape):
    last_error = LastErrorShape(allow_null=True, help_text="of a wake that failed while the call waited")


class StoppedShape(ActShape):
    stopping = serializers.IntegerField(help_text="tasks told to stop now")
    already = serializers.IntegerField(help_text="tasks that were stopped, or on their way")


class StartedShape(ActShape):
    starting = serializers.IntegerField(help_text="stopped or failed tasks that are placed anew")


class ScaleBody(Shape):
    replicas = serializers.IntegerField(
        min_value=0,
        max_value=MAX_REPLICAS_LIMIT,
        help_text="within min_replicas and max_replicas",
    )


class ScaledShape(ActShape):
    replicas = ReplicasShape()


class FaultShape(Shape):
    task = serializers.CharField()
    attempt = serializers.IntegerField(allow_null=True)
    at = serializers.DateTimeField()
    cause = ReasonShape()
    action = ReasonShape(allow_null=True, help_text="null: nothing yet")
    until = serializers.DateTimeField(allow_null=True, help_text="null: not over")
    duration_s = serializers.FloatField(allow_null=True)
    outcome = serializers.ChoiceField(choices=_values(Outcome))
    outcome_text = serializers.CharField(help_text="in the caller's language")


class EventShape(Shape):
    at = serializers.DateTimeField()
    task = serializers.CharField(allow_null=True)
    attempt = serializers.IntegerField(allow_null=True)
    to = serializers.CharField()
    reason = ReasonShape()
    actor = serializers.CharField()

    def get_fields(self) -> dict[str, Any]:
        fields = super().get_fields()
        fields["from"] = serializers.CharField()  # a word of the language, so no attribute
        return fields
