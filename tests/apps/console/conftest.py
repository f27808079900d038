"""A console with one row of every kind, and the client of an operator."""

from typing import Any

import pytest
from django.test import Client

from agent.contract.states import State
from apps.alerts.models import Alert, Delivery, Webhook
from apps.catalog.models import CatalogModel
from apps.core.models import AuditEntry, Lease, PublishedVersion, TickRun
from apps.files.models import FileRequest
from apps.fleet.models import Port
from apps.routing.models import ExternalEngine, GatewayLoad, InferenceEndpoint, ModelRoute
from apps.streams.models import LogChunk
from apps.tenants.models import User
from apps.usage.models import CardTime, UsageFile, UsageHost, UsageRecord, UsageTotal
from apps.workloads.models import Event, GroupWarning, Loan, Reservation
from tests import factories
from tests.factories import NOW


@pytest.fixture
def operator_client(operator: User) -> Client:
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def full(operator: User) -> dict[str, Any]:
    """At least one row of every model that the console shows."""
    tenant = factories.make_tenant()
    member = factories.make_member(tenant)
    factories.make_shared_group(tenant)
    former = {"former_sha256": "f0" * 32, "former_prefix": "sk-former", "former_until": NOW}
    key, plain = factories.make_key(tenant, member, **former)
    node = factories.make_node(cards=2)
    factories.make_join_token(operator)
    refusals = [{"code": "cards_short", "params": {"nodes": 1, "wanted": 4, "free": 2}}]
    group = factories.make_group(tenant, member)
    task = factories.make_task(
        group,
        node=node,
        attempt=1,
        reason_code="insufficient_resources",
        reason_params={"nodes": 1},
        refusals=refusals,
        last_error={"code": "exited", "params": {"exit_code": 3}, "log_lines": ["<b>boom</b>"]},
        env={"HF_TOKEN": "very-secret-value"},
    )
    failed = factories.make_task(factories.make_group(tenant, member, state=State.FAILED), state=State.FAILED)
    claim = factories.make_claim(task, node, percent=50)
    borrower = factories.make_claim(failed, node, attempt=1)
    Loan.objects.create(card=claim.cards.all()[0], borrower=borrower, since=NOW, until=NOW)
    Reservation.objects.create(task=failed, node=node, created_at=NOW, until=NOW)
    Event.objects.create(group=group, task=task, code="created", actor="x", to_state="pending", at=NOW)
    GroupWarning.objects.create(group=group, code="endpoint_without_port")
    ModelRoute.objects.create(tenant=tenant, model_name="tiny-model", group=group)
    far = ExternalEngine.objects.create(name="far", url="https://far.example", api_key="very-secret-value")
    ModelRoute.objects.create(tenant=tenant, model_name="far-model", external=far)
    InferenceEndpoint.objects.create(
        tenant=tenant, created_by=member, name="e", group=group, api_key=key, port=8000
    )
    Port.objects.create(node=node, number=20000, owner=task.public_id, attempt=1, container_port=8000)
    alert = Alert.objects.create(
        code="clock_skew",
        object_id=node.public_id,
        params={"node": node.name, "skew_s": 90},
        opened_at=NOW,
        last_at=NOW,
    )
    webhook = Webhook.objects.create(
        name="pager", url="https://pager.example/hook", secret="very-secret-value", created_at=NOW
    )
    Delivery.objects.create(webhook=webhook, alert=alert, event="opened", body="{}", created_at=NOW)
    CatalogModel.objects.create(name="tiny-model", path="/m/t.gguf", image="llama.cpp:server")
    UsageRecord.objects.create(
        request_id="r-1", started_at=NOW, path="/v1/chat/completions", ending="completed", http_status=200
    )
    ExternalEngine.objects.create(name="elsewhere", url="https://engine.example", api_key="very-secret-value")
    UsageTotal.objects.create(span="day", began_at=NOW, tenant_slug=tenant.slug, model="m", requests=1)
    UsageFile.objects.create(name="u-1.ndjson", offset=10)
    CardTime.objects.create(
        day=NOW.date(),
        kind="running",
        task_id=task.public_id,
        attempt=1,
        tenant_slug=tenant.slug,
        group_name=group.name,
        card_ms=3_600_000,
        counted_until=NOW,
    )
    UsageHost.objects.create(name="host-a", updated_at=NOW)
    GatewayLoad.objects.create(name="host-a:1:abc", in_flight={task.public_id: 2}, said_at=NOW)
    TickRun.objects.create(name="scheduling.place", outcome="done", finished_at=NOW, duration_ms=4)
    Lease.objects.create(name="scheduling.place")
    PublishedVersion.objects.update_or_create(name="gateway")
    LogChunk.objects.create(task=task, attempt=1, start=0, end=3, file="logs/x", created_at=NOW)
    FileRequest.objects.create(
        task=task,
        node=node,
        created_by=member,
        kind="download",
        path="/data/mine",
        created_at=NOW,
        touched_at=NOW,
        expires_at=NOW,
    )
    factories.make_session(operator)
    factories.make_invitation(tenant, member)
    AuditEntry.objects.create(
        at=NOW, actor="x", verb="rotate_key", object_kind="key", object_name="k", after={"prefix": "sk-1"}
    )
    return {
        "tenant": tenant,
        "member": member,
        "key": key,
        "plain": plain,
        "node": node,
        "group": group,
        "task": task,
        "failed": failed,
        "claim": claim,
    }
