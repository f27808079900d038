"""Several schedulers at once, stale views and crashes: nothing is ever given twice (SCHED-12)."""

import threading
from collections import Counter

import pytest
from django.db import transaction
from msgspec.structs import replace

from agent.contract.states import State
from apps.core import leases, rows, ticks
from apps.core.models import TickRun
from apps.fleet.models import Port
from apps.scheduling.placements import placement_of
from apps.scheduling.policy.decide import decide
from apps.scheduling.selectors import load_snapshot
from apps.workloads import services
from apps.workloads.models import CardClaim, Claim, Task
from tests import factories
from tests.apps.core.threads import run_at_once

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.req("SCHED-12")]

PORT = [{"container_port": 8000}]


def assert_nothing_is_given_twice() -> None:
    """Live claims, cards and ports agree with the states, and no card is promised beyond itself."""
    promised: Counter[int] = Counter()
    for card_id, percent in CardClaim.objects.filter(claim__released_at__isnull=True).values_list(
        "card_id", "percent"
    ):
        promised[card_id] += 100 if percent is None else percent
    assert all(sum_ <= 100 for sum_ in promised.values()), promised
    placed = set(Task.objects.filter(state=State.SCHEDULING).values_list("pk", flat=True))
    claims = list(Claim.objects.filter(released_at__isnull=True).values_list("task_id", flat=True))
    assert sorted(claims) == sorted(placed)
    for task in Task.objects.filter(pk__in=placed):
        assert CardClaim.objects.filter(claim__task=task).count() == task.gpu_required
        assert Port.objects.filter(owner=task.public_id).count() == len(task.ports)


def test_one_free_card_four_tasks_four_schedulers(now):
    factories.make_node(cards=1)
    tasks = [factories.make_task(ports=PORT) for _ in range(4)]

    ran = run_at_once(4, lambda number: ticks.run_tick("scheduling.place", now) is not None)

    assert any(ran)
    assert Task.objects.filter(state=State.SCHEDULING).count() == 1
    waiting = Task.objects.filter(state=State.PENDING, pk__in=[task.pk for task in tasks])
    assert {task.reason_code for task in waiting} == {"insufficient_resources"}
    assert_nothing_is_given_twice()


def test_schedulers_that_decided_on_the_same_view_commit_one_placement_only(now):
    """Two that run by mistake at once: each with a lease of its own, both with the same snapshot."""
    factories.make_node(cards=1)
    for _ in range(4):
        factories.make_task(ports=PORT)
    snapshot = load_snapshot(now)
    assert snapshot is not None
    # each one sees the card free and another task at the head
    views = [decide(replace(snapshot, tasks=(task,)), now) for task in snapshot.tasks]

    def commit(number: int) -> int:
        lease = leases.acquire(f"scheduler-{number}", "me", 60)
        assert lease is not None
        wanted = [placement_of(item) for item in views[number].placements]
        assert len(wanted) == 1
        try:
            return len(services.commit_placements(lease=lease, placements=wanted, now=now))
        except services.PlacementClash:
            return 0

    assert sum(run_at_once(4, commit)) == 1
    assert_nothing_is_given_twice()


def test_many_runs_at_once_never_promise_more_than_there_is(now):
    tenant = factories.make_tenant()
    factories.make_node(cards=2)
    factories.make_node(cards=1)
    for n in range(12):
        group = factories.make_group(tenant, gpu_memory_utilization=(40, 50, None)[n % 3])
        factories.make_task(group, ports=PORT)

    def work(number: int) -> None:
        for _ in range(3):
            ticks.run_tick("scheduling.place", now)

    run_at_once(6, work)
    ticks.run_tick("scheduling.place", now)

    assert Task.objects.filter(state=State.SCHEDULING).exists()
    assert Task.objects.filter(state=State.PENDING).exists()
    assert_nothing_is_given_twice()


def test_a_task_that_was_stopped_meanwhile_is_not_placed(now):
    factories.make_node(cards=1)
    task = factories.make_task()
    snapshot = load_snapshot(now)
    assert snapshot is not None
    plan = decide(snapshot, now)
    Task.objects.filter(pk=task.pk).update(version=task.version + 1, state=State.STOPPED)
    lease = leases.acquire("scheduling.place", "me", 60)
    assert lease is not None

    placements = [placement_of(item) for item in plan.placements]
    assert services.commit_placements(lease=lease, placements=placements, now=now) == set()
    assert not Claim.objects.exists()


@pytest.mark.parametrize("fails_in_slice", [1, 2])
def test_a_crash_between_slices_leaves_no_half_placement(now, settings, monkeypatch, fails_in_slice):
    """The process dies while slice N is written: earlier slices stand, of that one nothing does, and
    the next run goes on from there."""
    settings.COMMIT_SLICE = 2
    factories.make_node(cards=8)
    group = factories.make_group()
    for _ in range(6):
        factories.make_task(group, ports=PORT)

    class Died(BaseException):
        pass

    insert, slices = rows.insert_columns, []

    def die_at_the_last_write(model, *args):
        slices.append(model)
        if slices.count(Port) == fails_in_slice:
            assert transaction.get_connection().in_atomic_block
            raise Died
        return insert(model, *args)

    monkeypatch.setattr(rows, "insert_columns", die_at_the_last_write)
    with pytest.raises(Died):
        ticks.run_tick("scheduling.place", now)

    assert Task.objects.filter(state=State.SCHEDULING).count() == 2 * (fails_in_slice - 1)
    assert_nothing_is_given_twice()

    monkeypatch.undo()
    assert ticks.run_tick("scheduling.place", now) is not None
    assert Task.objects.filter(state=State.SCHEDULING).count() == 6
    assert_nothing_is_given_twice()


@pytest.mark.req("SCHED-01")
def test_a_run_that_was_overtaken_writes_nothing_more(now, settings, monkeypatch):
    settings.COMMIT_SLICE = 1
    factories.make_node(cards=4)
    for _ in range(3):
        factories.make_task()
    commit = services.commit_placements

    def overtaken_after_one(*, lease, placements, now):
        done = commit(lease=lease, placements=placements, now=now)
        leases.Lease.objects.filter(name=lease.name).update(holder="another", fence=lease.fence + 1)
        return done

    monkeypatch.setattr(services, "commit_placements", overtaken_after_one)

    assert ticks.run_tick("scheduling.place", now) is None
    assert Task.objects.filter(state=State.SCHEDULING).count() == 1
    assert not TickRun.objects.filter(name="scheduling.place").exists()


@pytest.mark.req("SCHED-01")
def test_a_dead_holder_is_replaced_after_its_lease(now, settings):
    settings.TICK_LEASE_TTL_S = 0.2
    factories.make_node(cards=1)
    task = factories.make_task()
    assert leases.acquire("scheduling.place", "a-process-that-died", settings.TICK_LEASE_TTL_S) is not None
    done = threading.Event()
    for _ in range(2000):
        if ticks.run_tick("scheduling.place", now) is not None:
            break
        done.wait(0.01)

    task.refresh_from_db()
    assert task.state == State.SCHEDULING
