"""Signed-in browsers of a tenant's people, and a service with everything that its page shows."""

from typing import Any

import pytest
from django.test import Client

from agent.contract.states import State
from apps.routing.models import InferenceEndpoint, ModelRoute
from apps.tenants.models import Tenant, User
from apps.workloads.models import Event, GroupWarning, TaskGroup
from tests import factories
from tests.factories import NOW


def browser(user: User | None = None) -> Client:
    """A browser that checks CSRF as real ones must; signed in where a user is given."""
    client = Client(enforce_csrf_checks=False, raise_request_exception=False)
    if user is not None:
        client.force_login(user)
    return client


@pytest.fixture
def page(member: User) -> Client:
    """The member's browser."""
    return browser(member)


@pytest.fixture
def service(tenant: Tenant, member: User) -> TaskGroup:
    """A failed service with a warning, an endpoint, two events, refusals and hostile text."""
    group = factories.make_group(
        tenant, member, name="chat", state=State.FAILED, model_name="tiny-model", enable_api=True
    )
    node = factories.make_node("gpu-1")
    task = factories.make_task(
        group,
        state=State.FAILED,
        node=node,
        attempt=2,
        reason_code="exited",
        reason_params={"exit_code": 3},
        refusals=[{"code": "node_offline", "params": {"nodes": 2}}],
        last_error={"code": "exited", "params": {"exit_code": 3}, "log_lines": ["<script>alert(1)</script>"]},
    )
    key, _plain = factories.make_key(tenant, member)
    InferenceEndpoint.objects.create(
        tenant=tenant, created_by=member, name="chat", group=group, api_key=key, port=8000
    )
    ModelRoute.objects.create(tenant=tenant, model_name="tiny-model", group=group)
    GroupWarning.objects.create(group=group, code="route_not_created")
    for state, code in (("pending", "created"), ("failed", "exited")):
        Event.objects.create(
            group=group, task=task, code=code, actor="demo", to_state=state, at=NOW, params={"exit_code": 3}
        )
    return group


@pytest.fixture
def body() -> dict[str, Any]:
    """What the create form sends."""
    return {
        "name": "fresh",
        "model": "",
        "model_name": "",
        "model_path": "/models/tiny.gguf",
        "image": "ghcr.io/ggml-org/llama.cpp:server",
        "engine": "",
        "gpu_required": "1",
        "gpu_memory_utilization": "",
        "gpu_type": "",
        "estimated_gpu_memory_mb": "",
        "idle_timeout_minutes": "",
    }
