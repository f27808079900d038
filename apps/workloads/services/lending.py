"""Loans of a sleeping task's cards (SLEEP-05, SHARE-04): made and ended by an operator, or by their time.

Owns the rows. Places nothing on a lent card: that is the scheduler's.
"""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agent.contract.codes import Code, reason
from agent.contract.states import State
from apps.core import audit, hints
from apps.core.errors import Conflict
from apps.core.leases import Held
from apps.tenants import redline
from apps.tenants.scope import Viewer
from apps.tenants.trail import tenancy_of
from apps.workloads.models import CardClaim, Loan, Task
from apps.workloads.services.reporting import note_moments
from apps.workloads.state import lock_groups


def lend_card(*, actor: Viewer, card: CardClaim, borrower: Task, now: datetime) -> Loan:
    """Lend what a sleeping task holds of a card, for at most LOAN_MAX_S.

    Raises Conflict 409 `lender_awake`, `card_is_lent` or `borrower_may_not_share`.
    """
    with transaction.atomic():
        lock_groups([card.claim.task_id])
        held = CardClaim.objects.select_related("claim__task__group__tenant", "card").get(pk=card.pk)
        lender = held.claim.task
        if lender.state != State.SLEEPING or held.claim.released_at is not None:
            raise Conflict("lender_awake", state=lender.state)
        present = Loan.objects.filter(card=held, ended_at__isnull=True).select_related("borrower").first()
        if present is not None:
            raise Conflict("card_is_lent", borrower=present.borrower.name)
        if not redline.may_share(lender.group.tenant_id, borrower.group.tenant_id):
            raise Conflict("borrower_may_not_share")
        loan = Loan.objects.create(
            card=held,
            borrower=borrower,
            made_by=actor.name,
            since=now,
            until=now + timedelta(seconds=settings.LOAN_MAX_S),
        )
        _note(actor, "lend_card", loan)
    return loan


def end_loan(*, actor: Viewer, loan: Loan, now: datetime) -> bool:
    """End a loan; a lender that was asked to wake does so at once. False where it had ended."""
    with transaction.atomic():
        ended = _end(loan, actor.name, now)
        if ended:
            _note(actor, "end_loan", loan)
    hints.kick("recovery.sweep")
    return ended


def end_due_loans(*, lease: Held, now: datetime) -> int:
    """End loans whose time is up; answers how many."""
    with lease.transaction():
        due = Loan.objects.filter(ended_at__isnull=True, until__lte=now).order_by("pk")
        return sum(_end(loan, "recovery", now) for loan in due)


def _end(loan: Loan, by: str, now: datetime) -> bool:
    ended = bool(Loan.objects.filter(pk=loan.pk, ended_at__isnull=True).update(ended_at=now))
    if ended:
        note_moments(loan.card.claim.task, [reason(Code.LOAN_ENDED)], by=by, now=now)
    return ended


def _note(actor: Viewer, verb: str, loan: Loan) -> None:
    lender = loan.card.claim.task
    audit.note(
        actor,
        verb,
        kind="task",
        public_id=lender.public_id,
        name=lender.name,
        tenant=tenancy_of(lender.group.tenant),
        after={"borrower": loan.borrower.public_id, "card": loan.card.card.uuid},
    )
