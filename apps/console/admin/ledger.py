"""The ledger of work: claims with the cards they hold, kept room, events, warnings. Written by services
alone."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from apps.console.admin.base import ReadOnlyAdmin, ReadOnlyRows, to_the_second
from apps.core import texts
from apps.workloads.models import CardClaim, Claim, Event, GroupWarning, Reservation


class CardClaimRows(ReadOnlyRows):
    model = CardClaim
    fields = ["card", "percent"]
    readonly_fields = fields


@admin.register(Claim)
class ClaimAdmin(ReadOnlyAdmin):
    """A claim without a release time holds room on its node."""

    list_display = ["task", "attempt", "node", "incarnation", "created_at", "claimed_at", "released_at"]
    list_filter = [("released_at", admin.EmptyFieldListFilter), "node"]
    search_fields = ["task__name", "task__public_id", "node__name"]
    list_select_related = ["task", "node"]
    inlines = [CardClaimRows]


@admin.register(Reservation)
class ReservationAdmin(ReadOnlyAdmin):
    """Room that work of lower priority left: nobody but its task is placed there (SCHED-11)."""

    list_display = ["task", "node", "percent", "created_at", "until"]
    list_filter = ["node"]
    search_fields = ["task__name", "task__public_id", "node__name"]
    list_select_related = ["task", "node"]


@admin.register(Event)
class EventAdmin(ReadOnlyAdmin):
    """Every move of a group or task: from, to, why, by whom, when (LIFE-01)."""

    list_display = ["when", "group", "task", "attempt", "from_state", "to_state", "sentence", "actor"]
    list_filter = ["to_state", "code"]
    search_fields = ["group__name", "group__public_id", "task__name", "task__public_id", "actor"]
    list_select_related = ["group", "task"]
    ordering = ["-at", "-pk"]
    date_hierarchy = "at"
    fields = [
        "when",
        "group",
        "task",
        "attempt",
        "from_state",
        "to_state",
        "sentence",
        "code",
        "params",
        "actor",
    ]

    @display(description=_("at"), ordering="at")
    def when(self, row: Event) -> str:
        return to_the_second(row.at)

    @display(description=_("reason"))
    def sentence(self, row: Event) -> str:
        return texts.say(row.code, row.params)


@admin.register(GroupWarning)
class GroupWarningAdmin(ReadOnlyAdmin):
    """What a group's people should mend (SVC-05)."""

    list_display = ["group", "sentence", "created_at"]
    list_filter = ["code"]
    search_fields = ["group__name", "group__public_id"]
    list_select_related = ["group"]
    fields = ["group", "sentence", "code", "params", "created_at"]

    @display(description=_("what"))
    def sentence(self, row: GroupWarning) -> str:
        return texts.say(row.code, row.params)
