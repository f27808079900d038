"""What list and detail tell (SVC-13), in a fixed number of statements, and to whom."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.response import Response
from rest_framework.test import APIClient

from agent.contract.states import Phase, State
from apps.inference import selectors
from apps.inference.api import shapes
from apps.routing.services import create_endpoint, create_route
from apps.tenants.models import Role, Tenant, User
from apps.tenants.scope import Viewer, viewer_of
from apps.workloads.models import Event, GroupWarning, TaskGroup
from tests import factories
from tests.apps.inference.conftest import URL
from tests.factories import NOW

pytestmark = pytest.mark.django_db
Post = Callable[..., Response]
Clients = Callable[..., APIClient]

SVC_13 = {
    "name",
    "status",
    "reason",
    "replicas",
    "world_size",
    "task_type",
    "gpus",
    "parallelism",
    "engine",
    "routes",
    "endpoint",
    "autoscale",
    "enable_api",
    "uptime_seconds",
    "warnings",
    "current_generation",
    "rolling_update_state",
    "rolling_update_message",
    "idle_timeout_minutes",
    "health_check",
    "scale_policy",
    "schedule_window",
    "inference_templates",
}


def make_service(tenant: Tenant, member: User, **fields: object) -> TaskGroup:
    group = factories.make_group(tenant, member, **fields)
    factories.make_task(group)
    create_route(group=group, model_name=group.model_name)
    create_endpoint(actor=viewer_of(member), group=group, name=group.name, port=8000, now=NOW)
    GroupWarning.objects.create(group=group, code="estimate_skipped")
    return group


@pytest.mark.req("SVC-13")
def test_list_and_detail_tell_everything(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    detail = client_of_member.get(f"{URL}/{made['id']}").json()
    listed = client_of_member.get(URL).json()
    assert listed["total"] == 1
    assert listed["items"] == [detail]
    assert set(detail) >= SVC_13
    assert detail["engine"] == "vllm"
    assert detail["routes"][0]["engine"] == "vllm"
    assert detail["routes"][0]["version"] == "v1"
    assert detail["reason"] == {"code": "created", "params": {}, "text": "Created."}
    assert detail["autoscale"] is False
    assert detail["uptime_seconds"] is None
    assert set(detail) == set(shapes.GroupShape().fields)
    assert set(detail["tasks"][0]) == set(shapes.TaskShape().fields)
    assert set(detail["endpoint"]) == set(shapes.EndpointShape().fields)
    assert set(detail["routes"][0]) == set(shapes.RouteOfGroupShape().fields)


@pytest.mark.req("SVC-13")
def test_twenty_services_cost_as_many_statements_as_one(tenant: Tenant, member: User) -> None:
    node = factories.make_node()
    for _ in range(20):
        group = make_service(tenant, member)
        factories.make_task(group, node=node, state=State.RUNNING)
    viewer = viewer_of(member)

    def count(groups: list[TaskGroup]) -> int:
        with CaptureQueriesContext(
            connection,
        ) as statements:
            assert len(selectors.describe_many(viewer, groups, now=NOW)) == len(groups)
        return len(statements)

    rows = list(TaskGroup.objects.order_by("pk"))
    one = count(rows[:1])
    assert count(list(TaskGroup.objects.order_by("pk"))) == one <= 10


@pytest.mark.req("SVC-13")
def test_states_reasons_and_uptime(tenant: Tenant, member: User) -> None:
    node = factories.make_node("rack-7")
    group = factories.make_group(tenant, member, state=State.RUNNING, max_replicas=4)
    running = factories.make_task(
        group,
        node=node,
        state=State.RUNNING,
        phase=Phase.READY,
        attempt=2,
        running_since=NOW - timedelta(seconds=90),
        reason_code="ready",
    )
    factories.make_task(
        group,
        state=State.PENDING,
        reason_code="insufficient_resources",
        reason_params={"nodes": 1},
        refusals=[
            {"code": "insufficient_resources", "params": {"nodes": 1}},
            {"code": "vram_short", "params": {"nodes": 1, "wanted_mb": 9000, "free_mb": 4000}},
        ],
        last_error={
            "code": "exited",
            "params": {"exit_code": 3},
            "exit_code": 3,
            "log_lines": ["x"],
            "at": "",
        },
    )
    told = selectors.describe(viewer_of(member), group, now=NOW)
    assert told["uptime_seconds"] == 90
    assert told["replicas"] == {"current": 2, "ready": 1, "min": 1, "max": 4}
    assert told["reason"]["code"] == "ready"
    ready, waiting = told["tasks"]
    assert (ready["id"], ready["node"], ready["phase"], ready["attempt"]) == (
        running.public_id,
        "rack-7",
        "ready",
        2,
    )
    assert waiting["node"] is None
    assert waiting["refusals"][1]["params"]["free_mb"] == 4000
    assert "8.8 GB needed" in waiting["refusals"][1]["text"]
    assert waiting["last_error"]["text"] == "It ended by itself with exit code 3."


@pytest.mark.req("TEN-09", "SVC-13")
def test_a_node_out_of_sight_is_not_named(tenant: Tenant, member: User, operator: User) -> None:
    secret = factories.make_node("secret-host", allowed_tenants=[factories.make_tenant()])
    group = factories.make_group(tenant, member)
    task = factories.make_task(
        group,
        node=secret,
        state=State.RUNNING,
        reason_code="placed",
        reason_params={"node": "secret-host"},
        last_error={"code": "node_lost", "params": {"node": "secret-host", "silent_s": 31}},
    )
    Event.objects.create(
        group=group, task=task, code="placed", params={"node": "secret-host"}, actor="scheduler", at=NOW
    )

    def tell(viewer: Viewer) -> str:
        parts = (
            selectors.describe(viewer, TaskGroup.objects.get(), now=NOW),
            selectors.describe_one_task(viewer, task),
            selectors.describe_events(viewer, Event.objects.select_related("task")),
        )
        return repr(parts)

    assert "secret-host" not in tell(viewer_of(member))
    assert "secret-host" in tell(viewer_of(operator))


def test_settings_that_nothing_acts_on_yet_are_said(post: Post) -> None:
    policy = {"enabled": True, "metrics": [{"name": "queue_length", "target_value": 4}]}
    made = post(scale_policy=policy, idle_timeout_minutes=30).json()
    assert made["autoscale"] is True
    assert [w["params"]["field"] for w in made["warnings"]] == ["scale_policy"]  # idle sleep acts


@pytest.mark.req("SVC-13")
def test_the_list_is_filtered_and_paged(client_of_member: APIClient, tenant: Tenant, member: User) -> None:
    for name, state in (("qwen-a", State.RUNNING), ("qwen-b", State.FAILED), ("llama", State.RUNNING)):
        factories.make_group(tenant, member, name=name, state=state)
    gone = factories.make_group(tenant, member, name="gone")
    TaskGroup.objects.filter(pk=gone.pk).update(deleted_at=NOW)

    def names(query: str) -> set[str]:
        return {item["name"] for item in client_of_member.get(f"{URL}?{query}").json()["items"]}

    assert names("") == {"qwen-a", "qwen-b", "llama"}
    assert names("status=running") == {"qwen-a", "llama"}
    assert names("name=QWEN") == {"qwen-a", "qwen-b"}
    assert names("task_type=training") == set()
    assert names(f"tenant={tenant.slug}&status=failed") == {"qwen-b"}
    page = client_of_member.get(f"{URL}?page=2&page_size=2").json()
    assert (page["total"], page["page"], len(page["items"])) == (3, 2, 1)
    wrong = client_of_member.get(f"{URL}?status=flying")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (400, "status")
    assert client_of_member.get(f"{URL}?name=%00").status_code == 400
    assert client_of_member.get(f"{URL}?page=99").status_code == 404


@pytest.mark.req("TEN-02", "TEN-04")
def test_who_sees_what(api_client: Clients, tenant: Tenant, member: User, operator: User) -> None:
    group = make_service(tenant, member)
    task = group.tasks.get()
    owner, admin = (factories.make_member(tenant, role) for role in (Role.OWNER, Role.ADMIN))
    reader = factories.make_member(tenant, Role.VIEWER)
    colleague, stranger = factories.make_member(tenant), factories.make_member()
    reads = [f"{URL}/{group.public_id}", f"{URL}/{group.public_id}/events", f"/api/v1/tasks/{task.public_id}"]
    writes = [f"{URL}/{group.public_id}/stop", f"/api/v1/tasks/{task.public_id}/stop"]
    unknown = api_client(stranger).get(f"{URL}/tg-aaaaaaaaaaaaaaaa").json()
    for url in reads:
        for user in (member, owner, admin, reader, operator):
            assert api_client(user).get(url).status_code == 200, (url, user)
        for user in (colleague, stranger):
            answer = api_client(user).get(url)
            assert answer.status_code == 404
            assert answer.json() | {"request_id": ""} == unknown | {"request_id": ""}
        assert api_client().get(url).status_code == 401
    for url in writes:
        for user in (colleague, stranger):
            assert api_client(user).post(url).status_code == 404
        assert api_client(reader).post(url).status_code == 403
        assert api_client().post(url).status_code == 401
    for user, count in ((member, 1), (admin, 1), (reader, 1), (operator, 1), (colleague, 0), (stranger, 0)):
        assert api_client(user).get(URL).json()["total"] == count
    assert api_client(stranger).delete(f"{URL}/{group.public_id}").status_code == 404
    assert api_client(reader).delete(f"{URL}/{group.public_id}").status_code == 403
    assert TaskGroup.objects.get().deleted_at is None


@pytest.mark.req("LIFE-01")
def test_events_come_oldest_first_with_their_sentences(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    events = client_of_member.get(f"{URL}/{made['id']}/events").json()
    assert events["total"] == 1
    event = events["items"][0]
    assert set(event) == set(shapes.EventShape().fields)
    assert (event["task"], event["to"]) == (made["tasks"][0]["id"], "pending")
    assert event["reason"]["text"] == "Created."


def test_the_schemas_request_has_the_fields_that_are_read() -> None:
    from apps.core.errors import Invalid
    from apps.inference.validation import validate_create
    from apps.inference.validation.worker import TASK_ONLY

    assert set(shapes.WorkerBody().fields) == TASK_ONLY | {"name"}
    for name in shapes.NewGroupBody().fields:
        try:
            validate_create({name: None}, is_operator=False)
        except Invalid as refused:
            assert (name, "unknown_field") not in {(e.field, e.code) for e in refused.errors}


@pytest.mark.req("SVC-13")
def test_the_schema_is_built_with_these_addresses(api_client: Clients, operator: User) -> None:
    schema = api_client(operator).get("/api/schema.json").json()
    for path in (
        "/api/v1/task-groups",
        "/api/v1/model-routes",
        "/api/v1/gateway/endpoints",
        "/api/v1/models",
    ):
        assert path in schema["paths"]
