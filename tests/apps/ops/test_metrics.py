"""`/metrics`: who may read it, what stands in it, and what a database that is away leaves out (OPS-04)."""

from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.parser import text_string_to_metric_families

from agent.contract.states import State
from apps.core.clock import utc_now
from apps.core.models import Lease, TickRun
from apps.fleet.models import Card, Liveness
from apps.ops import row_metrics
from tests import factories

pytestmark = pytest.mark.req("OPS-04")
TOKEN = "scrape-" + "x" * 30


def samples(client: Client, **headers: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape by name and sorted labels."""
    answer = client.get("/metrics", headers=headers)
    assert answer.status_code == 200
    return read(answer.content.decode())


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def open_here(settings) -> None:
    settings.METRICS_OPEN_ON_LOOPBACK = True


@pytest.mark.django_db
def test_without_the_token_nobody_reads_it(client, settings):
    assert client.get("/metrics").status_code == 401
    settings.METRICS_TOKEN, settings.METRICS_OPEN_ON_LOOPBACK = TOKEN, True
    for wrong in ({}, {"Authorization": "Bearer nope"}, {"Authorization": f"Basic {TOKEN}"}):
        answer = client.get("/metrics", headers=wrong)
        assert (answer.status_code, answer.json()["code"]) == (401, "metrics_token_wrong")
        assert TOKEN not in answer.content.decode()
    assert samples(client, Authorization=f"Bearer {TOKEN}")[("heteroflow_database_up", ())] == 1


@pytest.mark.django_db
@pytest.mark.usefixtures("open_here")
def test_this_machine_itself_and_nobody_through_a_proxy(client):
    assert client.get("/metrics").status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="::1").status_code == 200
    assert client.get("/metrics", REMOTE_ADDR="10.1.2.3").status_code == 401
    assert client.get("/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 401


@pytest.mark.django_db
@pytest.mark.usefixtures("open_here")
def test_requests_are_counted_by_template_and_kind_of_status(client):
    name, labels = "heteroflow_http_requests_total", {"method": "GET", "route": "api/v1/nodes/<str:node_id>"}
    key = (name, tuple(sorted({**labels, "status": "4xx"}.items())))
    before = samples(client).get(key, 0)
    for node_id in ("node-aaaaaaaaaaaaaaaa", "node-bbbbbbbbbbbbbbbb"):
        client.get(f"/api/v1/nodes/{node_id}")
    after = samples(client)
    assert after[key] == before + 2
    assert not [labels for _, labels in after if "aaaaaaaaaaaaaaaa" in str(labels)]
    client.get("/no/such/address")
    assert samples(client)[(name, (("method", "GET"), ("route", "unmatched"), ("status", "4xx")))] >= 1


@pytest.mark.django_db
@pytest.mark.usefixtures("open_here")
def test_loops_machines_and_queue_as_their_rows_say(client, operator):
    now = utc_now()
    ended = {"started_at": now, "finished_at": now - timedelta(seconds=30)}
    TickRun.objects.create(name="a.good", outcome="done", duration_ms=250, **ended)
    TickRun.objects.create(name="a.bad", outcome="failed", failures_in_a_row=3, **ended)
    TickRun.objects.create(name="a.new")
    Lease.objects.create(name="a.good", holder="host-a:12:34:ab", fence=7)
    nodes = [factories.make_node(name=f"n{i}", cards=2) for i in range(3)]
    Liveness.objects.filter(node=nodes[0]).update(last_seen_at=now, declared_lost_at=None)
    Liveness.objects.filter(node=nodes[1]).update(
        last_seen_at=now - timedelta(hours=1), declared_lost_at=None
    )
    Liveness.objects.filter(node=nodes[2]).update(last_seen_at=now - timedelta(hours=1), declared_lost_at=now)
    Card.objects.filter(node=nodes[0], index=0).update(present=False)
    group = factories.make_group(factories.make_tenant("secret-lab"), operator)
    factories.make_task(group, reason_code="insufficient_resources", state=State.PENDING)
    found = samples(client)

    def value(name: str, **labels: str) -> float | None:
        return found.get((f"heteroflow_{name}", tuple(sorted(labels.items()))))

    assert 29 <= (value("loop_last_run_age_seconds", loop="a.good") or 0) <= 60
    assert value("loop_last_run_duration_seconds", loop="a.good") == 0.25
    assert value("loop_last_run_succeeded", loop="a.bad") == 0
    assert value("loop_failures_in_a_row", loop="a.bad") == 3
    assert value("loop_last_run_age_seconds", loop="a.new") is None  # never ran: absent, not zero
    assert value("loop_lease_held", loop="a.good", host="host-a") == 1
    assert [value("nodes", state=state) for state in ("online", "silent", "offline")] == [1, 1, 1]
    assert (value("cards", state="present"), value("cards", state="missing")) == (5, 1)
    assert value("tasks_pending", reason="insufficient_resources") == 1
    assert "secret-lab" not in str(found)


@pytest.mark.django_db
def test_a_scrape_asks_little_whatever_the_size():
    def cost() -> int:
        with CaptureQueriesContext(connection) as asked:
            row_metrics.read_rows(utc_now())
        return len(asked)

    small = cost()
    for i in range(5):
        factories.make_node(name=f"n{i}", cards=2)
        TickRun.objects.create(name=f"t{i}")
    assert cost() == small <= 9


@pytest.mark.usefixtures("open_here")
def test_a_database_that_is_away_is_said_and_nothing_of_it_is_zero(client, monkeypatch):
    def away(now):
        raise OperationalError("away")

    monkeypatch.setattr(row_metrics, "read_rows", away)
    found = samples(client)
    assert found[("heteroflow_database_up", ())] == 0
    names = {name for name, _ in found}
    assert not [n for n in names if n.startswith(("heteroflow_nodes", "heteroflow_loop", "heteroflow_tasks"))]
