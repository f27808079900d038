"""How a loan of a sleeping task's card ends (SLEEP-05, SHARE-04): by its time or an operator's word.

Its borrower is told to go first; the card is back, and the lender may wake, once that is gone from it
(`ending`). Loans are made with the placement that borrows (`placing`).
"""

from datetime import datetime

from django.db import transaction

from agent.contract.codes import Code, reason
from apps.core import audit, hints
from apps.core.leases import Held
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads.models import Claim, Loan, Task
from apps.workloads.policy.moves import SERVING
from apps.workloads.services.ending import take_off
from apps.workloads.services.mending import each_task
from apps.workloads.state import lock_groups


def end_loan(*, actor: Viewer, loan: Loan, now: datetime) -> bool:
    """Stop the borrower of a loan, with all that it borrowed; a lender that was asked to wake does so when
    the card is back. False where the borrower is on its way already, or gone."""
    with transaction.atomic():
        lock_groups([loan.borrower.task_id])
        ended = _recall(loan.borrower, actor.name, now)
        if ended:
            _note(actor, loan)
    return ended


def end_due_loans(*, lease: Held, now: datetime) -> int:
    """Stop borrowers whose time is up; answers how many."""
    due = Claim.objects.filter(borrowed__ended_at__isnull=True, borrowed__until__lte=now)

    def stop(task: Task) -> bool:
        late = due.filter(task=task, attempt=task.attempt).first()
        return late is not None and _recall(late, "recovery", now)

    return each_task(lease, sorted(set(due.values_list("task_id", flat=True))), stop)


def _recall(borrower: Claim, by: str, now: datetime) -> bool:
    """In the transaction that holds its group's lock."""
    task = Task.objects.select_related("group", "node").filter(pk=borrower.task_id).first()
    live = Loan.objects.filter(borrower=borrower, ended_at__isnull=True).exists()
    if task is None or not live or task.attempt != borrower.attempt or task.state not in SERVING:
        return False
    hints.kick("scheduling.place")
    return take_off(task, reason(Code.LOAN_ENDED), actor=by, now=now)


def _note(actor: Viewer, loan: Loan) -> None:
    lender = loan.card.claim.task
    audit.note(
        actor,
        "end_loan",
        kind="task",
        public_id=lender.public_id,
        name=lender.name,
        tenant=tenancy_of(lender.group.tenant),
        after={"borrower": loan.borrower.task.public_id, "card": loan.card.card.uuid},
    )
