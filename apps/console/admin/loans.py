"""Loans of sleeping tasks' cards: an operator makes and ends them through workloads' services (SLEEP-05)."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from agent.contract.states import State
from apps.console.admin.base import OperatorAdmin
from apps.core.clock import utc_now
from apps.tenants.scope import viewer_of
from apps.workloads import services
from apps.workloads.models import CardClaim, Loan, Task


@admin.register(Loan)
class LoanAdmin(OperatorAdmin):
    """A lender does not wake before its loan has ended."""

    list_display = ["card", "lender", "borrower", "since", "until", "ended_at", "made_by"]
    list_filter = [("ended_at", admin.EmptyFieldListFilter)]
    search_fields = ["borrower__name", "card__claim__task__name", "made_by"]
    list_select_related = ["card__claim__task", "card__claim__node", "card__card", "borrower"]
    actions_detail = ["end_loan"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        asked = ["card", "borrower"]
        return asked if obj is None else [*asked, "lender", ("since", "until"), "ended_at", "made_by"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "card":
            held = CardClaim.objects.filter(claim__released_at__isnull=True)
            kwargs["queryset"] = held.filter(claim__task__state=State.SLEEPING).exclude(
                loans__isnull=False, loans__ended_at__isnull=True
            )
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    @display(description=_("lender"))
    def lender(self, row: Loan) -> Task:
        return row.card.claim.task

    def save_model(self, request: HttpRequest, obj: Loan, form: Any, change: Any) -> None:
        made = services.lend_card(
            actor=viewer_of(request.user), card=obj.card, borrower=obj.borrower, now=utc_now()
        )
        obj.pk = made.pk

    @action(description=_("End the loan"), url_path="end", permissions=["operate"])
    def end_loan(self, request: HttpRequest, object_id: str) -> HttpResponse:
        loan = self.found(request, object_id)

        def act() -> str:
            ended = services.end_loan(actor=viewer_of(request.user), loan=loan, now=utc_now())
            return str(_("The loan has ended.") if ended else _("The loan had ended before."))

        return self.ask_then(
            request,
            title=_("End the loan to %(name)s") % {"name": loan.borrower.name},
            question=_(
                "The lender wakes if that was asked for. What the borrower runs is not stopped by this."
            ),
            button=_("End the loan"),
            back=self.page_of(loan),
            act=act,
        )
