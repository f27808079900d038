"""Where people are signed in, and their one-time links (TEN-10): to read, end and withdraw."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from apps.console.admin.base import ReadOnlyAdmin, coloured
from apps.core.clock import utc_now
from apps.tenants import services
from apps.tenants.models import OneTimeLink, SignedIn
from apps.tenants.scope import viewer_of


@admin.register(SignedIn)
class SignedInAdmin(ReadOnlyAdmin):
    """A browser's session, or a program's tokens. Ended here, it is ended at once."""

    list_display = ["user", "way", "address", "agent", "created_at", "last_seen_at", "ended_at"]
    list_filter = ["way", ("ended_at", admin.EmptyFieldListFilter)]
    search_fields = ["user__username", "public_id", "address", "agent"]
    list_select_related = ["user"]
    fields = ["user", "public_id", "way", "address", "agent", "created_at", "last_seen_at", "ended_at"]
    actions_detail = ["end"]
    actions = ["end_selected"]

    @action(description=_("End"), url_path="end", permissions=["operate"])
    def end(self, request: HttpRequest, object_id: str) -> HttpResponse:
        session = self.found(request, object_id)

        def act() -> str:
            services.end_session(actor=viewer_of(request.user), session=session, now=utc_now())
            return str(_("Ended."))

        return self.ask_then(
            request,
            title=_("End a session of %(name)s") % {"name": session.user},
            question=_("Its browser or program is signed out at once."),
            button=_("End"),
            back=self.page_of(session),
            act=act,
        )

    @admin.action(description=_("End the selected sessions"), permissions=["operate"])
    def end_selected(self, request: HttpRequest, queryset: Any) -> None:
        for session in queryset.select_related("user"):
            services.end_session(actor=viewer_of(request.user), session=session, now=utc_now())
        self.message_user(request, _("Ended."))


@admin.register(OneTimeLink)
class OneTimeLinkAdmin(ReadOnlyAdmin):
    """Invitations and links for new passwords; the link itself stands nowhere."""

    list_display = ["public_id", "purpose", "tenant", "role", "user", "email", "created_by", "shown_state"]
    list_filter = ["purpose", "tenant"]
    search_fields = ["public_id", "email", "user__username", "tenant__slug", "created_by__username"]
    list_select_related = ["tenant", "user", "created_by"]
    fields = [
        "public_id",
        "purpose",
        "tenant",
        "role",
        "user",
        "email",
        "created_by",
        "created_at",
        "expires_at",
        "used_at",
        "withdrawn_at",
        "shown_state",
    ]
    actions_detail = ["withdraw"]

    @display(description=_("state"))
    def shown_state(self, row: OneTimeLink) -> str:
        if row.used_at:
            return coloured(_("used"), "success")
        if row.withdrawn_at:
            return coloured(_("withdrawn"), "warning")
        return (
            coloured(_("expired"), "warning") if row.expires_at <= utc_now() else coloured(_("open"), "info")
        )

    @action(description=_("Withdraw"), url_path="withdraw", permissions=["operate"])
    def withdraw(self, request: HttpRequest, object_id: str) -> HttpResponse:
        link = self.found(request, object_id)

        def act() -> str:
            services.withdraw_link(actor=viewer_of(request.user), link=link, now=utc_now())
            return str(_("The link is not valid any more."))

        return self.ask_then(
            request,
            title=_("Withdraw a link"),
            question=_("Whoever has it can not use it any more."),
            button=_("Withdraw"),
            back=self.page_of(link),
            act=act,
        )
