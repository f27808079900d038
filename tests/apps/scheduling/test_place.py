"""The scheduling loop on real rows: placed, refused, told, and cheap when idle."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from agent.contract.codes import Code
from agent.contract.states import Phase, State, TaskType
from apps.core import hints, ticks
from apps.core.leases import LeaseLost
from apps.core.models import TickRun
from apps.fleet.models import Card, Port
from apps.tenants.models import TenantStatus
from apps.workloads import services
from apps.workloads.models import CardClaim, Claim, Event, Task
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

CPU = {"gpu_required": 0}
PORT = [{"container_port": 8000}]


def run(now=factories.NOW) -> dict[str, Any]:
    done = ticks.run_tick("scheduling.place", now)
    assert done is not None, TickRun.objects.filter(name="scheduling.place").values()
    return done


def codes(task: Task) -> list[str]:
    task.refresh_from_db()
    return [why["code"] for why in task.refusals]


@pytest.mark.req("SCHED-01", "LIFE-08")
def test_a_waiting_task_gets_a_claim_a_card_a_port_and_its_next_attempt(now):
    node = factories.make_node(cards=2)
    task = factories.make_task(ports=PORT)

    assert run()["placed"] == 1

    task.refresh_from_db()
    assert (task.state, task.phase, task.attempt, task.node) == (State.SCHEDULING, Phase.PLACED, 1, node)
    claim = Claim.objects.get(task=task, attempt=1, released_at__isnull=True)
    assert (claim.node, claim.incarnation) == (node, "")
    assert CardClaim.objects.get(claim=claim).percent is None
    port = Port.objects.get(owner=task.public_id, attempt=1)
    assert node.port_first <= port.number <= node.port_last
    assert Event.objects.filter(task=task, code=Code.PLACED, actor="scheduler").count() == 1


def test_its_node_is_told_to_look(now, monkeypatch):
    told = []
    monkeypatch.setattr(hints, "look", told.append)
    used, idle = factories.make_node(), factories.make_node(cordoned=True)
    factories.make_task()
    run()

    assert told == [used.public_id]
    assert idle.public_id not in told


@pytest.mark.parametrize(("period_s", "times"), [(60.0, 1), (0.0, 2)])
def test_a_node_is_told_once_a_run_or_once_a_period_of_a_long_one(
    now, settings, monkeypatch, period_s, times
):
    settings.COMMIT_SLICE, settings.SCHEDULING_PERIOD_S = 1, period_s
    told = []
    monkeypatch.setattr(transaction, "on_commit", lambda say: say())
    monkeypatch.setattr(hints, "_send_group", lambda group, message: told.append(group))
    node = factories.make_node(cards=2)
    factories.make_task()
    factories.make_task()
    run()

    assert told.count(f"node.{node.public_id}") == times


def test_what_was_placed_before_the_lease_was_lost_is_told(now, settings, monkeypatch):
    settings.COMMIT_SLICE = 1
    told = []
    monkeypatch.setattr(hints, "look", told.append)
    real, done = services.commit_placements, []

    def overtaken(**given):
        if done:
            raise LeaseLost("scheduling.place")
        done.append(given)
        return real(**given)

    monkeypatch.setattr(services, "commit_placements", overtaken)
    node = factories.make_node(cards=2)
    factories.make_task()
    factories.make_task()
    assert ticks.run_tick("scheduling.place", now) is None

    assert told == [node.public_id]


@pytest.mark.req("SCHED-10")
def test_what_fits_nowhere_waits_with_the_reasons(now):
    factories.make_node(cards=1)
    factories.make_node(cards=1, last_seen_at=now - timedelta(hours=1))
    task = factories.make_task(gpu_required=2)
    run()

    assert codes(task) == ["insufficient_resources", "cards_short", "node_offline"]
    assert task.state == State.PENDING
    assert (task.reason_code, task.reason_params) == ("insufficient_resources", {"nodes": 2})
    assert not Claim.objects.exists()


@pytest.mark.req("SCHED-10")
def test_reasons_follow_what_changes_and_are_not_written_again_otherwise(now):
    task = factories.make_task()
    run()
    assert codes(task) == ["no_node"]
    node = factories.make_node(cards=0)
    run()
    assert codes(task) == ["insufficient_resources", "cards_short"]

    with CaptureQueriesContext(
        connection,
    ) as captured:
        run(now + timedelta(seconds=1))
    assert not [q for q in captured if q["sql"].startswith('UPDATE "workloads_task"')]

    factories.make_card(node)
    run()
    task.refresh_from_db()
    assert (task.state, task.refusals) == (State.SCHEDULING, [])


@pytest.mark.req("SCHED-02")
def test_higher_priority_gets_the_only_card(now):
    factories.make_node(cards=1)
    low = factories.make_task(now=now - timedelta(hours=1))
    high = factories.make_task(factories.make_group(priority=10))
    run()

    low.refresh_from_db()
    high.refresh_from_db()
    assert (low.state, high.state) == (State.PENDING, State.SCHEDULING)


@pytest.mark.req("TEN-09")
def test_closed_nodes_take_their_tenants_and_shared_groups_only(now):
    listed, grouped, stranger = (factories.make_tenant() for _ in range(3))
    shared = factories.make_shared_group(grouped)
    node = factories.make_node(cards=4, allowed_tenants=[listed], allowed_groups=[shared])
    tasks = [factories.make_task(factories.make_group(tenant)) for tenant in (listed, grouped, stranger)]
    run()

    for task in tasks:
        task.refresh_from_db()
    assert [task.node for task in tasks] == [node, node, None]
    assert codes(tasks[2]) == ["no_node"]


@pytest.mark.req("TEN-01")
def test_nothing_of_a_suspended_tenant_is_placed(now):
    factories.make_node()
    tenant = factories.make_tenant(status=TenantStatus.SUSPENDED, suspended_reason="unpaid")
    task = factories.make_task(factories.make_group(tenant))
    run()

    assert codes(task) == ["tenant_suspended"]
    assert task.reason_params == {"why": "unpaid"}


@pytest.mark.req("SCHED-05", "SHARE-01")
def test_promises_of_live_claims_count_and_released_ones_do_not(now):
    tenant = factories.make_tenant()
    node = factories.make_node(cards=1)
    half = {"gpu_memory_utilization": 50}
    first = factories.make_task(factories.make_group(tenant, **half), ports=PORT)
    run()
    second = factories.make_task(factories.make_group(tenant, **half), ports=PORT)
    run()
    assert codes(second) == ["insufficient_resources", "commitment_full"]

    Claim.objects.filter(task=first).update(released_at=now)
    run()
    assert CardClaim.objects.get(claim__task=second).percent == 50
    assert Card.objects.get(node=node).claims.count() == 2


@pytest.mark.req("SCHED-08")
def test_training_gets_no_card_that_serves(now):
    tenant = factories.make_tenant()
    factories.make_node(cards=1)
    factories.make_task(factories.make_group(tenant, gpu_memory_utilization=30))
    training = factories.make_task(
        factories.make_group(tenant, task_type=TaskType.TRAINING, gpu_memory_utilization=30), engine=""
    )
    run()

    assert codes(training) == ["insufficient_resources", "cards_short"]


@pytest.mark.req("SCHED-09")
def test_the_red_line_follows_the_shared_groups(now):
    mine, other = factories.make_tenant(), factories.make_tenant()
    factories.make_node(cards=1)
    factories.make_task(factories.make_group(other, gpu_memory_utilization=30))
    task = factories.make_task(factories.make_group(mine, gpu_memory_utilization=30))
    run()
    assert codes(task) == ["insufficient_resources", "red_line"]

    factories.make_shared_group(mine, other)
    run()
    task.refresh_from_db()
    assert task.state == State.SCHEDULING


@pytest.mark.req("SCHED-04")
def test_measured_use_of_strangers_counts_and_an_unknown_card_takes_nothing(now):
    factories.make_node(cards=1, sample={"vram_used_mb": 20_000})
    task = factories.make_task(estimated_gpu_memory_mb=8_000)
    run()
    assert codes(task) == ["insufficient_resources", "vram_short"]

    factories.make_node(cards=1, sample=False)
    run()
    assert codes(task) == ["insufficient_resources", "vram_short", "vram_unknown"]


def test_a_card_that_left_the_heartbeat_takes_nothing(now):
    factories.make_node(cards=[{"present": False}])
    task = factories.make_task()
    run()

    assert codes(task) == ["insufficient_resources", "cards_short"]


@pytest.mark.req("RECOV-01")
def test_a_back_off_is_kept(now):
    factories.make_node()
    task = factories.make_task(not_before=now + timedelta(seconds=5))
    assert run()["placed"] == 0
    assert codes(task) == []

    Task.objects.filter(pk=task.pk).update(not_before=now)
    assert run()["placed"] == 1


def test_tasks_that_shall_stop_or_of_deleted_groups_are_left_alone(now):
    factories.make_node(cards=4)
    factories.make_task(desired="stop")
    factories.make_task(factories.make_group(deleted_at=now))

    assert run() == {"waiting": 0}


@pytest.mark.req("SCHED-12")
def test_large_work_is_committed_in_slices(now, settings):
    settings.COMMIT_SLICE = 3
    factories.make_node(cards=8)
    group = factories.make_group()
    for _ in range(10):
        factories.make_task(group)

    done = run()

    assert (done["placed"], done["refused"], done["left"]) == (8, 2, 0)
    assert CardClaim.objects.values("card").distinct().count() == 8


def test_a_run_without_time_leaves_the_rest_to_the_next(now, settings):
    settings.COMMIT_SLICE, settings.SCHEDULING_BUDGET_S = 2, 0.0
    factories.make_node(cards=8)
    group = factories.make_group()
    for _ in range(5):
        factories.make_task(group)

    assert [run()["placed"] for _ in range(3)] == [2, 2, 1]


@pytest.mark.req("RECOV-05")
def test_a_row_that_can_not_be_read_stops_no_other(now):
    factories.make_node(cards=2)
    factories.make_task(ports=[{"wrong": 1}])
    good = factories.make_task()

    assert run()["placed"] == 1
    good.refresh_from_db()
    assert good.state == State.SCHEDULING


@pytest.mark.req("RECOV-05", "SCHED-12")
def test_a_clash_costs_that_row_only(now, monkeypatch):
    factories.make_node(cards=3)
    tasks = [factories.make_task() for _ in range(3)]
    commit = services.commit_placements
    clashing = tasks[1].pk

    def commit_some(*, lease, placements, now):
        if any(item.task_id == clashing for item in placements):
            raise services.PlacementClash
        return commit(lease=lease, placements=placements, now=now)

    monkeypatch.setattr(services, "commit_placements", commit_some)
    done = run()

    assert (done["placed"], done["clashed"]) == (2, 1)
    assert Task.objects.get(pk=clashing).state == State.PENDING


@pytest.mark.req("RECOV-05")
@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_an_error_over_one_row_costs_that_row_only(now, monkeypatch, error):
    factories.make_node(cards=3)
    tasks = [factories.make_task() for _ in range(3)]
    commit = services.commit_placements

    def commit_some(*, lease, placements, now):
        if any(item.task_id == tasks[0].pk for item in placements):
            raise error
        return commit(lease=lease, placements=placements, now=now)

    monkeypatch.setattr(services, "commit_placements", commit_some)

    assert run()["placed"] == 2


def test_an_idle_run_costs_a_handful_of_statements(now):
    factories.make_node(cards=8)
    run()
    with CaptureQueriesContext(connection) as captured:
        assert run() == {"waiting": 0}

    reads = [q["sql"] for q in captured if q["sql"].startswith("SELECT") and "core_" not in q["sql"]]
    assert len(reads) == 1
    assert len(captured) <= 8
