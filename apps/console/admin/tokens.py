"""Join tokens: who made them, whether they were used. The token itself stands nowhere."""

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from apps.console.admin.base import ReadOnlyAdmin, coloured
from apps.console.admin.joining import join_token_page
from apps.core.clock import utc_now
from apps.fleet.models import JoinToken


@admin.register(JoinToken)
class JoinTokenAdmin(ReadOnlyAdmin):
    """A token works once and ends by itself."""

    list_display = ["public_id", "shown_state", "created_by", "created_at", "expires_at", "node"]
    search_fields = ["public_id", "created_by__username", "node__name"]
    list_select_related = ["created_by", "node"]
    fields = ["public_id", "shown_state", "created_by", "created_at", "expires_at", "redeemed_at", "node"]
    actions_list = ["new_join_token"]

    @display(description=_("state"))
    def shown_state(self, row: JoinToken) -> str:
        if row.redeemed_at:
            return coloured(_("used"), "success")
        return (
            coloured(_("expired"), "warning") if row.expires_at <= utc_now() else coloured(_("open"), "info")
        )

    @action(description=_("New join token"), url_path="new", permissions=["operate"], icon="add")
    def new_join_token(self, request: HttpRequest) -> HttpResponse:
        return join_token_page(self, request)
