"""A tick runs once at a time, survives its body, and leaves a row that says how it went."""

import threading
from collections.abc import Iterator
from datetime import datetime

import pytest
from celery import current_app
from django.db import connection

from apps.core import leases, ticks
from apps.core.models import TickRun
from tests.apps.core.threads import run_at_once

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "test.tick"


@pytest.fixture
def register() -> Iterator[object]:
    """`register(body)`: a tick that goes away with the test."""

    def add(body: ticks.Body) -> None:
        ticks.REGISTRY[NAME] = ticks.Tick(NAME, "SCHEDULING_PERIOD_S", "ticks", body)

    yield add
    ticks.REGISTRY.pop(NAME, None)


def test_a_run_leaves_what_it_did(register, now):
    register(lambda lease, at: {"seen": at.isoformat()})

    assert ticks.run_tick(NAME, now) == {"seen": now.isoformat()}
    row = TickRun.objects.get(name=NAME)
    assert (row.outcome, row.failures_in_a_row, row.started_at) == ("done", 0, now)
    assert row.detail == {"seen": now.isoformat()}


@pytest.mark.req("RECOV-05")
def test_a_failing_body_is_counted_and_the_next_run_works(register, now):
    answers = [RuntimeError("one"), RuntimeError("two"), {"fine": True}]

    def body(lease: leases.Held, at: datetime) -> dict[str, object]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    register(body)
    for expected in (1, 2):
        assert ticks.run_tick(NAME, now) is None
        row = TickRun.objects.get(name=NAME)
        assert (row.outcome, row.failures_in_a_row) == ("failed", expected)
        assert row.detail == {"error": "RuntimeError"}
    assert ticks.run_tick(NAME, now) == {"fine": True}
    assert TickRun.objects.get(name=NAME).failures_in_a_row == 0


def test_a_failed_run_gives_its_lease_back(register, now):
    def body(lease: leases.Held, at: datetime) -> dict[str, object]:
        raise RuntimeError

    register(body)
    ticks.run_tick(NAME, now)

    assert leases.acquire(NAME, "another", 60) is not None


@pytest.mark.req("SCHED-01")
def test_it_is_skipped_while_another_holds_the_lease(register, now):
    ran = []
    register(lambda lease, at: ran.append(at) or {})
    leases.acquire(NAME, "another", 60)

    assert ticks.run_tick(NAME, now) is None
    assert not ran
    assert not TickRun.objects.exists()


@pytest.mark.req("SCHED-01")
def test_runs_at_the_same_time_never_overlap(register, now):
    started, go_on, runs = threading.Event(), threading.Event(), []

    def body(lease: leases.Held, at: datetime) -> dict[str, object]:
        runs.append(lease.fence)
        started.set()
        assert go_on.wait(30)
        return {}

    register(body)
    runner = threading.Thread(target=lambda: (ticks.run_tick(NAME, now), connection.close()))
    runner.start()
    assert started.wait(30)
    skipped = run_at_once(4, lambda number: ticks.run_tick(NAME, now))
    go_on.set()
    runner.join(30)

    assert skipped == [None] * 4
    assert len(runs) == 1


def test_a_run_that_was_overtaken_leaves_no_row(register, now):
    def body(lease: leases.Held, at: datetime) -> dict[str, object]:
        leases.Lease.objects.filter(name=NAME).update(holder="b", fence=lease.fence + 1)
        with lease.transaction():
            raise AssertionError("must not get here")

    register(body)

    assert ticks.run_tick(NAME, now) is None
    assert not TickRun.objects.exists()
    assert leases.Lease.objects.get(name=NAME).holder == "b"


@pytest.mark.req("SCHED-01", "RECOV-06")
def test_beat_and_celery_know_the_loops(settings):
    current_app.loader.import_default_modules()
    schedule = ticks.beat_schedule()

    assert schedule["scheduling.place"]["schedule"] == settings.SCHEDULING_PERIOD_S == 1.0
    assert schedule["scheduling.place"]["options"]["queue"] == "scheduling"
    assert schedule["recovery.sweep"]["schedule"] == settings.RECOVERY_PERIOD_S == 5.0
    assert {"scheduling.place", "recovery.sweep"} <= set(current_app.tasks)


def test_the_celery_task_runs_the_tick(now):
    seen = []

    @ticks.tick("test.celery", every="SCHEDULING_PERIOD_S")
    def body(lease: leases.Held, at: datetime) -> dict[str, object]:
        seen.append(lease.name)
        return {}

    try:
        current_app.tasks["test.celery"].apply()
        assert seen == ["test.celery"]
    finally:
        ticks.REGISTRY.pop("test.celery")
        current_app.tasks.pop("test.celery", None)
