"""Loans of sleepers' cards: made with the placement that borrows, over before the lender wakes (SHARE-04)."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings

from agent.contract.codes import Code, reason
from agent.contract.states import Desired, Observed, State, TaskType
from apps.core import audit
from apps.fleet.models import Node
from apps.tenants.models import Tenant
from apps.tenants.scope import SYSTEM
from apps.workloads import services
from apps.workloads.models import Claim, Event, Lend, Loan, Task, TaskGroup
from apps.workloads.selectors import lendable_shares
from apps.workloads.services import Did, Placement
from tests.apps.workloads.conftest import Life
from tests.factories import NOW, make_group, make_node, make_shared_group, make_task, make_tenant

pytestmark = [pytest.mark.django_db, pytest.mark.req("SHARE-04", "SLEEP-05")]
LATER = NOW + timedelta(seconds=1)


def fresh(task: Task) -> Task:
    task.refresh_from_db()
    return task


def asleep(life: Life, node: Node, *, percent: int | None = None, port: int = 20001, **group: object) -> Task:
    service = make_group(gpu_memory_utilization=percent, **group)  # type: ignore[arg-type]
    task = life.run(make_task(service, ports=[{"container_port": 8000}]), node, percent=percent, port=port)
    services.request_sleep(by="ann", task=task, now=NOW)
    life.report(task, node, Observed.ASLEEP)
    assert task.state == State.SLEEPING
    return task


def training(tenant: Tenant, **fields: object) -> Task:
    group = make_group(tenant, task_type=TaskType.TRAINING)
    return make_task(group, **{"name": "night-training", "engine": "", **fields})  # type: ignore[arg-type]


def borrow(life: Life, task: Task, node: Node, *, cards: int = 1) -> bool:
    """Place it on the node's first cards, as the scheduler would."""
    rows = tuple(node.cards.order_by("index").values_list("pk", flat=True)[:cards])
    placement = Placement(task.pk, fresh(task).version, node.pk, rows, None, (), borrowed=True)
    return services.commit_placements(lease=life.lease, placements=[placement], now=NOW) == {task.pk}


def borrowing(life: Life, lender: Task, node: Node) -> Task:
    """A training run on the sleeper's card, taken on by its node."""
    task = training(lender.group.tenant)
    assert borrow(life, task, node)
    life.claim(fresh(task), node)
    return life.report(task, node, Observed.READY)


def test_a_borrower_has_its_claim_and_loans_and_the_lender_keeps_its_own(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    task = training(lender.group.tenant)
    assert borrow(life, task, node)
    loan = Loan.objects.get()
    assert (loan.card.claim.task, loan.borrower) == (lender, Claim.objects.get(task=task))
    assert (loan.since, loan.until) == (NOW, NOW + timedelta(seconds=settings.LOAN_MAX_S))
    assert Claim.objects.filter(released_at__isnull=True).count() == 2
    other = training(lender.group.tenant)
    assert not borrow(life, other, node), "what is lent is not lent again"
    assert not lendable_shares().exists()


def test_woken_while_it_is_lent_the_lender_wakes_when_the_borrower_is_gone(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    borrower = borrowing(life, lender, node)
    act = services.request_wake(by="ann", task=lender, now=LATER)
    assert (act.did, act.why.code, act.why.params["borrower"]) == (
        Did.NOTED,
        "wake_card_lent",
        "night-training",
    )
    assert services.wake_waiting(lease=life.lease, now=LATER) == 0
    assert fresh(borrower).state == State.RUNNING, "a wake takes nobody's card"

    loan = Loan.objects.get()
    assert services.end_loan(actor=SYSTEM, loan=loan, now=LATER)
    assert (fresh(borrower).state, borrower.reason_code) == (State.PENDING, Code.LOAN_ENDED)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 0, "its node still stops the borrower"
    assert not services.end_loan(actor=SYSTEM, loan=loan, now=LATER)

    life.report(borrower, node, Observed.GONE)
    loan.refresh_from_db()
    assert loan.ended_at == NOW and Event.objects.filter(task=lender, code=Code.LOAN_ENDED).count() == 1
    assert services.wake_waiting(lease=life.lease, now=LATER) == 1
    assert fresh(lender).state == State.WAKING


def test_the_end_of_a_loan_by_a_person_is_noted(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    borrower = borrowing(life, lender, node)
    services.end_loan(actor=SYSTEM, loan=Loan.objects.get(), now=LATER)
    entry = audit.AuditEntry.objects.get(verb="end_loan")
    assert (entry.object_id, entry.after["borrower"]) == (lender.public_id, borrower.public_id)


@pytest.mark.parametrize("minutes", [None, 7])
def test_a_loan_ends_by_its_time_which_the_lenders_tenant_may_name(life: Life, minutes: int | None) -> None:
    node = make_node()
    lender = asleep(life, node)
    Tenant.objects.filter(pk=lender.group.tenant_id).update(loan_max_minutes=minutes)
    borrower = borrowing(life, lender, node)
    due = NOW + timedelta(seconds=settings.LOAN_MAX_S if minutes is None else minutes * 60)
    assert services.end_due_loans(lease=life.lease, now=due - timedelta(seconds=1)) == 0
    assert services.end_due_loans(lease=life.lease, now=due) == 1
    assert fresh(borrower).state == State.PENDING
    assert services.end_due_loans(lease=life.lease, now=due) == 0, "once is enough"


def test_a_borrower_that_ends_by_itself_ends_the_loan_at_once(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    borrower = borrowing(life, lender, node)
    life.report(borrower, node, Observed.EXITED, exit_code=0)
    assert borrower.state == State.COMPLETED
    assert Loan.objects.get().ended_at == NOW
    assert lendable_shares().count() == 1, "and the card may be lent again"


def test_one_that_no_node_took_on_gives_the_card_back_at_once(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    task = training(lender.group.tenant)
    assert borrow(life, task, node)
    services.request_wake(by="ann", task=lender, now=LATER)
    assert services.end_loan(actor=SYSTEM, loan=Loan.objects.get(), now=LATER)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 1


def test_a_lender_that_is_stopped_or_deleted_leaves_the_card_to_the_borrower(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node)
    borrower = borrowing(life, lender, node)
    services.request_stop(actor=SYSTEM, tasks=[lender], why=reason(Code.STOP_REQUESTED), now=LATER)
    life.report(lender, node, Observed.GONE)
    assert Loan.objects.get().ended_at == NOW
    assert fresh(borrower).state == State.RUNNING
    assert not Event.objects.filter(code=Code.LOAN_ENDED).exists()
    newcomer = make_task(make_group(lender.group.tenant))
    placement = Placement(newcomer.pk, 0, node.pk, (node.cards.get().pk,), None, ())
    assert services.commit_placements(lease=life.lease, placements=[placement], now=NOW) == set()


def test_two_sleepers_of_one_card_wake_in_the_order_of_asking(life: Life) -> None:
    node, tenant = make_node(), make_tenant()
    first = asleep(life, node, percent=45, tenant=tenant)
    second = asleep(life, node, percent=45, port=20002, tenant=tenant)
    borrower = borrowing(life, first, node)
    assert Loan.objects.count() == 2, "one for each share"
    services.request_wake(by="ann", task=second, now=LATER)
    services.request_wake(by="ann", task=first, now=LATER + timedelta(seconds=1))
    services.request_wake(by="ann", task=second, now=LATER + timedelta(seconds=2))
    services.end_loan(actor=SYSTEM, loan=Loan.objects.all()[0], now=LATER)
    life.report(borrower, node, Observed.GONE)
    assert services.wake_waiting(lease=life.lease, now=LATER) == 2
    woken = Event.objects.filter(to_state=State.WAKING).order_by("pk").values_list("task", flat=True)
    assert list(woken) == [second.pk, first.pk]


def _asked_to_wake(lender: Task) -> None:
    Task.objects.filter(pk=lender.pk).update(desired=Desired.RUN)


def _unconfirmed(lender: Task) -> None:
    Task.objects.filter(pk=lender.pk).update(reason_code=Code.SLEEP_UNCONFIRMED)


def _awake(lender: Task) -> None:
    Task.objects.filter(pk=lender.pk).update(state=State.WAKING)


def _by_service(lender: Task) -> None:
    TaskGroup.objects.filter(pk=lender.group_id).update(lend=Lend.NEVER)


def _by_tenant(lender: Task) -> None:
    Tenant.objects.filter(pk=lender.group.tenant_id).update(lends=False)


@pytest.mark.parametrize("change", [_asked_to_wake, _unconfirmed, _awake, _by_service, _by_tenant])
def test_nothing_is_borrowed_of_who_does_not_lend(life: Life, change: Callable[[Task], None]) -> None:
    node = make_node()
    lender = asleep(life, node)
    assert lendable_shares().count() == 1
    change(lender)
    assert not borrow(life, training(lender.group.tenant), node)
    assert not lendable_shares().exists() and not Loan.objects.exists()


@pytest.mark.req("SHARE-05", "SCHED-09")
def test_nothing_is_borrowed_over_the_red_line(life: Life) -> None:
    node, stranger = make_node(), make_tenant()
    lender = asleep(life, node)
    assert not borrow(life, training(stranger), node)
    make_shared_group(stranger, lender.group.tenant)
    assert borrow(life, training(stranger), node)


@pytest.mark.req("SCHED-08")
def test_only_training_borrows_and_nobody_joins_it(life: Life) -> None:
    node = make_node()
    lender = asleep(life, node, percent=40)
    tenant = lender.group.tenant
    assert not borrow(life, make_task(make_group(tenant)), node)
    assert borrow(life, training(tenant), node)
    service = make_task(make_group(tenant, gpu_memory_utilization=20))
    placement = Placement(service.pk, 0, node.pk, (node.cards.get().pk,), 20, ())
    assert services.commit_placements(lease=life.lease, placements=[placement], now=NOW) == set()
