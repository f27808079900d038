"""People: accounts, passwords, operators. What they may do in tenants stands in memberships."""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.decorators import action, display
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from apps.console.admin.base import OperatorAdmin, ReadOnlyRows
from apps.core.clock import utc_now
from apps.tenants import presence, services
from apps.tenants.models import Membership, SignedIn, User
from apps.tenants.scope import viewer_of

# Roles are memberships (TEN-02); Django's own groups grant nothing here.
admin.site.unregister(Group)


class MembershipRows(ReadOnlyRows):
    model = Membership
    fields = ["tenant", "role"]
    readonly_fields = ["tenant", "role"]


class SessionRows(ReadOnlyRows):
    model = SignedIn
    fields = ["way", "address", "agent", "created_at", "last_seen_at", "ended_at"]
    readonly_fields = fields
    per_page = 20


@admin.register(User)
class UserAdmin(OperatorAdmin, DjangoUserAdmin):
    """An operator is a superuser who may enter the console (both boxes)."""

    form = UserChangeForm
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "operator", "is_active", "last_login"]
    list_filter = ["is_superuser", "is_active"]
    search_fields = ["username", "email", "public_id"]
    ordering = ["username"]
    filter_horizontal = []
    readonly_fields = ["public_id", "last_login", "date_joined"]
    inlines = [MembershipRows, SessionRows]
    actions_detail = ["offer_reset", "end_sessions"]
    fieldsets = (
        (None, {"fields": ["username", "password", "public_id"]}),
        (_("Person"), {"fields": ["first_name", "last_name", "email", "language", "time_zone"]}),
        (_("Access"), {"fields": ["is_active", "is_staff", "is_superuser"]}),
        (_("Dates"), {"fields": ["last_login", "date_joined"]}),
    )
    add_fieldsets = (
        (None, {"fields": ["username", "email", "password1", "password2", "is_staff", "is_superuser"]}),
    )

    @display(description=_("operator"), boolean=True)
    def operator(self, row: User) -> bool:
        return row.is_operator

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if change and "is_active" in form.changed_data:
            services.set_active(actor=viewer_of(request.user), user=obj, active=obj.is_active)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> Any:
        """The framework's page; with the new password the person's sessions and tokens end."""
        with transaction.atomic():
            row = self.get_object(request, id)
            old = row.password if row else ""
            answer = super().user_change_password(request, id, form_url)
            if row and User.objects.values_list("password", flat=True).get(pk=row.pk) != old:
                keep = request.session.get(presence.MARK, "") if row.pk == request.user.pk else ""
                services.note_new_password(actor=viewer_of(request.user), user=row, keep=keep, now=utc_now())
        return answer

    @action(description=_("Link for a new password"), url_path="offer-reset", permissions=["operate"])
    def offer_reset(self, request: HttpRequest, object_id: str) -> HttpResponse:
        user = self.found(request, object_id)
        title = _("A new password for %(name)s") % {"name": user}
        if request.method != "POST":
            return self.show(
                request,
                "console/confirm.html",
                title,
                question=_(
                    "The link lets this person set a new password, once. It is shown on the next page."
                ),
                button=_("Make a link"),
                back=self.page_of(user),
            )
        link, plain = services.offer_reset(actor=viewer_of(request.user), user=user, now=utc_now())
        return self.show(
            request,
            "console/shown_once.html",
            title,
            secret=services.link_address(link.purpose, plain),
            note=_("Give this link to the person. It is shown once and works once."),
            back=self.page_of(user),
        )

    @action(description=_("End all sessions"), url_path="end-sessions", permissions=["operate"])
    def end_sessions(self, request: HttpRequest, object_id: str) -> HttpResponse:
        user = self.found(request, object_id)

        def act() -> str:
            n = services.end_sessions(actor=viewer_of(request.user), user=user, now=utc_now())
            return ngettext("%(n)s session was ended.", "%(n)s sessions were ended.", n) % {"n": n}

        return self.ask_then(
            request,
            title=_("End all sessions of %(name)s") % {"name": user},
            question=_("Every browser and program of this person is signed out at once."),
            button=_("End all sessions"),
            back=self.page_of(user),
            act=act,
        )

    def get_inlines(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.inlines if obj else []
