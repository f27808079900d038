"""Loans of sleeping tasks' cards: made by placing, ended early by an operator (SHARE-04, SLEEP-05)."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from apps.console.admin.base import ReadOnlyAdmin
from apps.core.clock import utc_now
from apps.tenants.scope import viewer_of
from apps.workloads import services
from apps.workloads.models import Loan, Task


@admin.register(Loan)
class LoanAdmin(ReadOnlyAdmin):
    """A lender does not wake before its loan has ended."""

    list_display = ["card", "lender", "borrower", "since", "until", "ended_at"]
    list_filter = [("ended_at", admin.EmptyFieldListFilter)]
    search_fields = ["borrower__task__name", "card__claim__task__name"]
    list_select_related = ["card__claim__task", "card__claim__node", "card__card", "borrower__task"]
    list_select_related += ["borrower__node"]
    actions_detail = ["end_loan"]
    fields = ["card", "borrower", "lender", ("since", "until"), "ended_at"]

    @display(description=_("lender"))
    def lender(self, row: Loan) -> Task:
        return row.card.claim.task

    @action(description=_("End the loan"), url_path="end", permissions=["operate"])
    def end_loan(self, request: HttpRequest, object_id: str) -> HttpResponse:
        loan = self.found(request, object_id)

        def act() -> str:
            ended = services.end_loan(actor=viewer_of(request.user), loan=loan, now=utc_now())
            told = _("The borrower stops; then the card is back.")
            return str(told if ended else _("The borrower is on its way already, or gone."))

        return self.ask_then(
            request,
            title=_("End the loan to %(name)s") % {"name": loan.borrower.task.name},
            question=_(
                "The borrower is stopped and waits for another place, where it begins anew. Then the lender"
                " wakes, if that was asked for."
            ),
            button=_("End the loan"),
            back=self.page_of(loan),
            act=act,
        )
