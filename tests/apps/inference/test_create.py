"""Creating a service over the API: what it makes, what it refuses before anything is written."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from django.db import DatabaseError, connection
from rest_framework.response import Response
from rest_framework.test import APIClient

from apps.core import secrets, versions
from apps.inference.services import creating
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.tenants.models import ApiKey, Role, Tenant, TenantStatus, User
from apps.workloads.models import Event, GroupWarning, Task, TaskGroup
from tests import factories
from tests.apps.inference.bodies import ABSENT, body
from tests.apps.inference.conftest import URL

pytestmark = pytest.mark.django_db
Post = Callable[..., Response]
Clients = Callable[..., APIClient]


def nothing_was_written() -> bool:
    rows = (TaskGroup, Task, ModelRoute, InferenceEndpoint, ApiKey, Event, GroupWarning)
    return not any(kind.objects.exists() for kind in rows)


@pytest.mark.req("SVC-01", "TEN-06")
def test_one_request_makes_group_task_route_endpoint_and_key(
    post: Post, tenant: Tenant, member: User
) -> None:
    before = versions.read()
    answer = post()
    assert answer.status_code == 201
    made = answer.json()
    assert made["id"].startswith("tg-")
    assert made["status"] == "pending"
    assert made["reason"]["code"] == "created"
    assert made["tenant"] == tenant.slug
    assert made["warnings"] == []
    assert made["tasks"][0]["id"].startswith("task-")
    assert made["tasks"][0]["name"] == "my-qwen-service-worker"
    assert made["endpoint"]["id"].startswith("ep-")
    assert made["endpoint"]["name"] == "my-qwen-service"
    assert made["endpoint"]["port"] == 8000
    route = made["routes"][0]
    assert route["id"].startswith("mr-")
    assert {name: route[name] for name in ("model_name", "priority", "weight", "active", "version")} == {
        "model_name": "Qwen2.5-0.5B-Instruct",
        "priority": 0,
        "weight": 100,
        "active": True,
        "version": "v1",
    }
    key = ApiKey.objects.get()
    assert key.sha256 == secrets.sha256_hex(made["api_key"])
    assert made["api_key"].startswith("sk-")
    assert made["endpoint"]["key_prefix"] == key.prefix
    assert (key.tenant, key.member) == (tenant, member)
    assert answer["Cache-Control"] == "no-store"
    assert versions.read() > before
    assert Event.objects.filter(group__public_id=made["id"], code="created").exists()


@pytest.mark.req("TEN-06")
def test_the_key_stands_in_no_later_answer(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    later = [
        client_of_member.get(f"{URL}/{made['id']}"),
        client_of_member.get(URL),
        client_of_member.get("/api/v1/gateway/endpoints"),
        client_of_member.get(f"/api/v1/gateway/endpoints/{made['endpoint']['id']}"),
    ]
    for answer in later:
        assert answer.status_code == 200
        assert made["api_key"] not in answer.content.decode()


@pytest.mark.req("SVC-01", "PAR-01")
def test_split_makes_as_many_tasks_as_replicas(post: Post) -> None:
    made = post(**{"parallelism": "split", "world_size": 3, "task.name": ABSENT}).json()
    assert [task["name"] for task in made["tasks"]] == [f"my-qwen-service-{rank}" for rank in range(3)]
    assert made["replicas"] == {"current": 3, "ready": 0, "min": 1, "max": 3}
    assert (made["gpus"], made["world_size"]) == (3, 3)


@pytest.mark.req("SVC-04")
def test_enable_api_without_a_port_makes_no_endpoint_and_says_so(post: Post) -> None:
    made = post(
        **{"task.model_path": "", "task.command": ["serve"], "task.ports": [], "health_check": ABSENT}
    ).json()
    assert made["endpoint"] is None
    assert made["api_key"] is None
    assert [w["code"] for w in made["warnings"]] == ["endpoint_without_port", "not_counted_on_card"]
    assert all(w["text"] for w in made["warnings"])
    assert InferenceEndpoint.objects.count() == 0


@pytest.mark.req("SVC-03")
def test_a_container_gets_neither_route_nor_endpoint(post: Post) -> None:
    changes = {"task.model_path": "", "task.image": "ubuntu:24.04", "task.command": ["sleep", "1"]}
    made = post(**changes, enable_api=False).json()
    assert (made["task_type"], made["routes"], made["endpoint"]) == ("container", [], None)
    assert ModelRoute.objects.count() == 0


@pytest.mark.req("SVC-02", "OPS-08")
def test_pull_credentials_rest_encrypted_and_are_in_no_answer(
    post: Post, client_of_member: APIClient
) -> None:
    answer = post(**{"task.pull_credentials": {"username": "robot", "password": "hunter2-long"}})
    assert answer.status_code == 201
    with connection.cursor() as cursor:
        cursor.execute("SELECT pull_credentials FROM workloads_task")
        (stored,) = cursor.fetchone()
    assert stored
    assert "hunter2" not in stored
    assert "hunter2" in Task.objects.get().pull_credentials
    shown = client_of_member.get(f"{URL}/{answer.json()['id']}").content.decode()
    assert "hunter2" not in shown + answer.content.decode()


@pytest.mark.req("SVC-05", "SVC-07")
def test_a_taken_name_is_refused_before_anything_is_written(post: Post) -> None:
    assert post().status_code == 201
    counts = [kind.objects.count() for kind in (TaskGroup, Task, ModelRoute, ApiKey, Event)]
    again = post(model_name="other")
    assert again.status_code == 409
    problem = again.json()
    assert problem["code"] == "name_taken"
    assert [(e["field"], e["code"], e["value"]) for e in problem["errors"]] == [
        ("name", "name_taken", "my-qwen-service")
    ]
    assert [kind.objects.count() for kind in (TaskGroup, Task, ModelRoute, ApiKey, Event)] == counts


@pytest.mark.req("SVC-07")
def test_a_name_that_a_renamed_endpoint_bears_is_taken(post: Post, client_of_member: APIClient) -> None:
    made = post().json()
    endpoint = f"/api/v1/gateway/endpoints/{made['endpoint']['id']}"
    assert client_of_member.put(endpoint, {"name": "renamed"}).status_code == 200
    assert post(name="renamed").status_code == 409
    assert TaskGroup.objects.count() == 1


@pytest.mark.req("SVC-05")
def test_another_tenant_may_use_the_same_name(post: Post, api_client: Clients) -> None:
    assert post().status_code == 201
    assert post(api_client(factories.make_member())).status_code == 201


@pytest.mark.req("SVC-05")
def test_a_name_taken_in_the_same_moment_is_409_too(post: Post, tenant: Tenant, member: User) -> None:
    factories.make_group(tenant, member, name="my-qwen-service")
    looked = iter([False, False])  # twice it seems free; then the database has the last word

    def look(*args: Any) -> None:
        if next(looked, True):
            real(*args)

    real = creating.refuse_taken
    with mock.patch.object(creating, "refuse_taken", look):
        answer = post()
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert TaskGroup.objects.count() == 1


@pytest.mark.req("SVC-05")
@pytest.mark.parametrize(
    ("broken", "code", "lacks"),
    [
        ("create_route", "route_not_created", "routes"),
        ("create_endpoint", "endpoint_not_created", "endpoint"),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError("boom"), DatabaseError("disk I/O error")])
def test_a_failing_route_or_endpoint_leaves_the_group_with_a_warning(
    post: Post, client_of_member: APIClient, broken: str, code: str, lacks: str, error: Exception
) -> None:
    with mock.patch(f"apps.inference.services.creating.routing.{broken}", side_effect=error):
        answer = post()
    assert answer.status_code == 201
    made = answer.json()
    assert [w["code"] for w in made["warnings"]] == [code]
    assert not made[lacks]
    assert "boom" not in answer.content.decode()
    shown = client_of_member.get(f"{URL}/{made['id']}").json()
    assert [w["code"] for w in shown["warnings"]] == [code]
    assert Task.objects.count() == 1


@pytest.mark.req("SVC-05")
def test_a_half_made_endpoint_leaves_no_key_behind(post: Post) -> None:
    with mock.patch.object(InferenceEndpoint.objects, "create", side_effect=RuntimeError("boom")):
        assert post().json()["api_key"] is None
    assert ApiKey.objects.count() == 0
    assert TaskGroup.objects.count() == 1


@pytest.mark.req("TEN-01")
def test_a_suspended_tenant_creates_nothing(post: Post, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(status=TenantStatus.SUSPENDED, suspended_reason="unpaid")
    answer = post()
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    assert "unpaid" in answer.json()["detail"]
    assert nothing_was_written()


@pytest.mark.req("TEN-02", "TEN-04")
def test_who_may_create_where(post: Post, api_client: Clients, tenant: Tenant, operator: User) -> None:
    assert post(api_client()).status_code == 401
    assert post(api_client(factories.make_member(tenant, Role.VIEWER))).status_code == 403
    stranger = post(api_client(factories.make_member()), tenant=tenant.slug)
    nowhere = post(api_client(factories.make_member()), tenant="no-such-tenant")
    assert (stranger.status_code, stranger.json()["code"]) == (404, "not_found")
    same = ("code", "detail", "params")
    assert [stranger.json()[k] for k in same] == [nowhere.json()[k] for k in same]
    for answer, slug in ((stranger, tenant.slug), (nowhere, "no-such-tenant")):
        (error,) = answer.json()["errors"]
        assert (error["field"], error["code"], error["value"]) == ("tenant", "no_such_name", slug)
        assert slug in error["detail"]
    assert nothing_was_written()
    assert post(api_client(operator), tenant=tenant.slug, priority=-1).status_code == 201


@pytest.mark.req("TEN-02")
def test_a_member_of_two_tenants_names_one(post: Post, api_client: Clients, tenant: Tenant) -> None:
    user = factories.make_member(tenant)
    other = factories.make_tenant()
    factories.make_member(other, user=user)
    unnamed = post(api_client(user))
    assert unnamed.status_code == 400
    assert [(e["field"], e["code"]) for e in unnamed.json()["errors"]] == [("tenant", "tenant_required")]
    assert post(api_client(user), tenant=other.slug).json()["tenant"] == other.slug


@pytest.mark.req("TEN-07")
@pytest.mark.parametrize(
    ("quota", "changes", "what", "asked"),
    [
        ({"task_groups": 1}, {}, "task_groups", 1),
        ({"replicas": 2}, {"parallelism": "split", "world_size": 2}, "replicas", 2),
        ({"gpus": 4}, {"task.gpu_required": 4, "world_size": 4}, "gpus", 4),
        ({"endpoints": 1}, {}, "endpoints", 1),
    ],
)
def test_a_quota_is_refused_with_its_numbers(
    post: Post, tenant: Tenant, quota: dict[str, int], changes: dict[str, Any], what: str, asked: int
) -> None:
    type(tenant.quota).objects.filter(tenant=tenant).update(**quota)
    assert post(name="first").status_code == 201
    answer = post(**changes)
    assert (answer.status_code, answer.json()["code"]) == (403, "quota_exceeded")
    assert answer.json()["params"] == {"what": what, "limit": quota[what], "used": 1, "asked": asked}
    assert TaskGroup.objects.count() == 1


@pytest.mark.req("SVC-02", "SVC-08", "SVC-10", "SVC-11")
@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"gpu_required": 1}, "gpu_required", "field_belongs_in_task"),
        ({"image": "a:1"}, "image", "field_belongs_in_task"),
        ({"colour": 1}, "colour", "unknown_field"),
        ({"co_schedule": True}, "co_schedule", "co_schedule_closed"),
        ({"task.model_path": ""}, "task.model_path", "model_path_or_command"),
        ({"task.gpu_required": 65}, "task.gpu_required", "out_of_range"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization", "out_of_range"),
        ({"task.kv_offload_gb": 4097}, "task.kv_offload_gb", "out_of_range"),
        ({"priority": -1}, "priority", "operators_only"),
        ({"task.image": "vllm"}, "task.image", "bad_image"),
        ({"parallelism": "ring"}, "parallelism", "not_yet_offered"),
        ({"name": "a\x00b"}, "name", "bad_characters"),
        ({"name": "\U0001f680", "model_name": ABSENT}, "model_name", "model_name_from_name"),
    ],
)
def test_refusals_over_the_wire(post: Post, changes: dict[str, Any], field: str, code: str) -> None:
    answer = post(**changes)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (400, "invalid")
    assert [(e["field"], e["code"]) for e in problem["errors"]] == [(field, code)]
    assert problem["errors"][0]["detail"] != code, "a code without a sentence"
    assert field in problem["errors"][0]["detail"]
    assert problem["request_id"] != "-"
    assert nothing_was_written()


def test_emoji_are_fine_in_the_name_for_people(post: Post) -> None:
    assert post(name="Qwen \U0001f680").json()["name"] == "Qwen \U0001f680"


def test_the_answer_speaks_the_callers_language(client_of_member: APIClient) -> None:
    english = client_of_member.post(URL, body(name=""), headers={"accept-language": "en"}).json()
    assert english["errors"][0]["detail"] == "name must not be blank."


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"{", "application/json", 400, "malformed_json"),
        (b"\xff\xfe", "application/json", 400, "malformed_json"),
        (b'{"name": NaN}', "application/json", 400, "malformed_json"),
        (b"[]", "application/json", 400, "not_an_object"),
        (b"[" * 100_000, "application/json", 400, "malformed_json"),
        (b'{"name": "\\ud800"}', "application/json", 400, "invalid"),
        (b'{"priority": 1e999}', "application/json", 400, "invalid"),
        (b'{"priority": 1' + b"0" * 5000 + b"}", "application/json", 400, "malformed_json"),
        (b"name=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"", "application/json", 400, "invalid"),
        (b'{"name": "' + b"x" * 20_000_000 + b'"}', "application/json", 413, "body_too_large"),
    ],
    ids=[
        "cut",
        "not-utf8",
        "nan",
        "list",
        "deep",
        "surrogate",
        "infinite",
        "huge-int",
        "form",
        "empty",
        "20MB",
    ],
)
def test_bodies_that_are_no_request(
    client_of_member: APIClient, content: bytes, kind: str, status: int, code: str
) -> None:
    answer = client_of_member.generic("POST", URL, content, content_type=kind)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert nothing_was_written()
