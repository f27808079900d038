"""The loop on real rows where room is made, kept, borrowed and given back (SCHED-11, SHARE-04, SCHED-12)."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Parallelism, Phase, State, TaskType
from apps.core import leases, ticks
from apps.core.models import TickRun
from apps.fleet.models import Card, Liveness, Node
from apps.tenants.scope import SYSTEM
from apps.workloads import services
from apps.workloads.models import CardClaim, Claim, Event, Loan, Reservation, Task
from apps.workloads.services.reporting import end_attempt
from tests import factories
from tests.apps.core.threads import run_at_once
from tests.factories import NOW

pytestmark = pytest.mark.django_db(transaction=True)
PORT = [{"container_port": 8000}]


def run(now: datetime = NOW) -> dict[str, Any]:
    Liveness.objects.update(last_seen_at=now)
    done = ticks.run_tick("scheduling.place", now)
    assert done is not None, TickRun.objects.filter(name="scheduling.place").values()
    return done


def running(node: Node, card: Card | None = None, **group: Any) -> Task:
    """A service on one of the node's cards, taken on by its agent."""
    service = factories.make_group(**{"preemptible": True, "state": State.RUNNING, **group})
    task = factories.make_task(
        service, state=State.RUNNING, attempt=1, node=node, ports=PORT, phase=Phase.READY
    )
    factories.make_claim(task, node, cards=[card] if card else None, incarnation="run-1")
    return task


def gone(task: Task, now: datetime = NOW) -> None:
    """Its node's next complete list does not hold its latest attempt."""
    claim = Claim.objects.filter(task=task, released_at__isnull=True).order_by("attempt")[0]
    assert end_attempt(claim, reason(Code.CONTAINER_GONE), now=now, actor="node")


def fresh(task: Task) -> Task:
    task.refresh_from_db()
    return task


def high(**fields: Any) -> Task:
    return factories.make_task(factories.make_group(priority=10), **fields)


@pytest.mark.req("SCHED-11")
def test_cards_that_come_free_one_after_the_other_are_kept_for_who_needs_both(now: datetime) -> None:
    node = factories.make_node(cards=2)
    first, second = (running(node, card) for card in node.cards.order_by("index"))
    top = high(gpu_required=2)
    assert run()["made_room"] == 1
    assert {fresh(first).state, fresh(second).state} == {State.PENDING}

    gone(first)
    for second_later in range(1, 4):
        assert run(now + timedelta(seconds=second_later))["placed"] == 0, "the first card is not given back"
    assert fresh(first).state == State.PENDING and fresh(top).reason_code == Code.ROOM_KEPT
    assert Reservation.objects.get().cards.count() == 2

    gone(second)
    assert run(now + timedelta(seconds=5))["placed"] == 1
    assert fresh(top).state == State.SCHEDULING and not Reservation.objects.exists()


@pytest.mark.req("SCHED-11")
def test_who_can_never_fit_evicts_nobody(now: datetime) -> None:
    node = factories.make_node(cards=2)
    tasks = [running(node, card) for card in node.cards.all()]
    huge = high(gpu_required=3)
    for second in range(3):
        assert run(now + timedelta(seconds=second))["made_room"] == 0
    assert {fresh(task).state for task in tasks} == {State.RUNNING}
    assert fresh(huge).reason_code == Code.INSUFFICIENT_RESOURCES


@pytest.mark.req("SCHED-11")
def test_nobody_is_evicted_again_and_again(now: datetime) -> None:
    """Ever more important work keeps coming; who gave way and found another place keeps that for a while."""
    nodes = [factories.make_node() for _ in range(2)]
    low = running(nodes[0])
    factories.make_task(factories.make_group(priority=5))
    other = running(nodes[1], priority=20)
    assert run()["made_room"] == 1
    gone(low)
    assert run(now + timedelta(seconds=1))["placed"] == 1
    services.request_stop(actor=SYSTEM, tasks=[other], why=reason(Code.STOP_REQUESTED), now=now)
    gone(other)
    assert run(now + timedelta(seconds=2))["placed"] == 1
    assert fresh(low).node == nodes[1]

    pause = timedelta(seconds=settings.PREEMPTION_PAUSE_S)
    high(gpu_type="RTX 4090")
    Task.objects.exclude(pk=low.pk).filter(state=State.SCHEDULING).update(preempted_at=now)
    assert run(now + pause - timedelta(seconds=1))["made_room"] == 0
    assert Event.objects.filter(code=Code.PREEMPTED, task=low).count() == 1
    assert run(now + pause)["made_room"] == 1


@pytest.mark.req("SCHED-11")
def test_room_is_free_for_all_again_when_its_time_is_up(now: datetime) -> None:
    node = factories.make_node()
    low, top = running(node), high()
    assert run()["made_room"] == 1
    gone(low)
    Task.objects.filter(pk=top.pk).update(not_before=now + timedelta(days=1))  # it can not come after all
    until = now + timedelta(seconds=settings.PREEMPTION_HOLD_S)
    assert run(until - timedelta(seconds=1))["placed"] == 0
    assert run(until)["placed"] == 1 and fresh(low).state == State.SCHEDULING


@pytest.mark.req("SHARE-04", "SLEEP-05")
def test_training_borrows_a_sleepers_card_and_gives_it_back_before_that_wakes(now: datetime) -> None:
    node = factories.make_node()
    lender = running(node, preemptible=False)
    Task.objects.filter(pk=lender.pk).update(state=State.SLEEPING, desired=Desired.SLEEP, phase=Phase.NONE)
    training = factories.make_task(
        factories.make_group(lender.group.tenant, task_type=TaskType.TRAINING), engine=""
    )
    assert run()["placed"] == 1
    loan = Loan.objects.get()
    assert (loan.card.claim.task, loan.borrower.task) == (lender, training)
    Claim.objects.filter(task=training).update(incarnation="run-1", claimed_at=now)

    services.request_wake(by="ann", task=lender, now=now)
    sweep = leases.acquire("recovery.sweep", "me", 60)
    assert sweep is not None
    assert services.end_due_loans(lease=sweep, now=loan.until) == 1
    assert services.wake_waiting(lease=sweep, now=loan.until) == 0
    assert run(loan.until)["placed"] == 0, "its lender was asked to wake"
    gone(training)
    assert services.wake_waiting(lease=sweep, now=loan.until) == 1
    assert fresh(lender).state == State.WAKING
    assert run(loan.until)["placed"] == 0 and fresh(training).state == State.PENDING


@pytest.mark.req("SCHED-12", "SVC-12")
def test_stops_at_the_same_time_free_all_cards(now: datetime) -> None:
    node = factories.make_node(cards=4)
    tasks = [running(node, card) for card in node.cards.order_by("index")]

    def stop(number: int) -> None:
        task = tasks[number // 2]
        services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=now)
        claim = Claim.objects.get(task=task)
        end_attempt(claim, reason(Code.CONTAINER_GONE), now=now, actor="node")

    run_at_once(8, stop)
    assert {fresh(task).state for task in tasks} == {State.STOPPED}
    assert not CardClaim.objects.filter(claim__released_at__isnull=True).exists()
    factories.make_task(gpu_required=4)
    assert run()["placed"] == 1


@pytest.mark.req("SCHED-12", "SVC-12")
def test_an_end_that_nobody_told_is_found_by_the_next_complete_list(now: datetime) -> None:
    node = factories.make_node()
    task = running(node)
    services.request_stop(actor=SYSTEM, tasks=[task], why=reason(Code.STOP_REQUESTED), now=now)
    factories.make_task()
    assert run()["placed"] == 0
    late = now + timedelta(seconds=settings.RECONCILE_GRACE_S + 1)
    assert services.reconcile_node(node=node, running=[], now=late) == 1
    assert run(late)["placed"] == 1


@pytest.mark.req("SCHED-02", "SCHED-12")
def test_a_gang_is_never_cut_by_a_slice(now: datetime, settings: Any) -> None:
    settings.COMMIT_SLICE = 1
    for _ in range(3):
        factories.make_node(cards=1)
    group = factories.make_group(parallelism=Parallelism.PIPELINE_PARALLEL, world_size=3)
    stages = [factories.make_task(group, engine="vllm", ports=PORT) for _ in range(3)]
    assert run()["placed"] == 3
    assert {fresh(stage).state for stage in stages} == {State.SCHEDULING}
