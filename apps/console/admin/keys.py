"""API keys: issue, rotate, revoke. Neither key nor hash stands on any page but the one that makes it
(TEN-06), and that page is not kept by caches."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminSelectWidget,
    UnfoldAdminSplitDateTimeWidget,
    UnfoldAdminTextInputWidget,
)

from apps.console.admin.base import ReadOnlyAdmin, coloured, tell_refusal
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.tenants import services
from apps.tenants.models import ApiKey, Tenant, User
from apps.tenants.scope import viewer_of


class IssueForm(forms.Form):
    """For whom a new key is."""

    tenant = forms.ModelChoiceField(Tenant.objects.all(), label=_("Tenant"), widget=UnfoldAdminSelectWidget())
    member = forms.ModelChoiceField(
        User.objects.filter(is_active=True), label=_("Person"), widget=UnfoldAdminSelectWidget()
    )
    name = forms.CharField(label=_("Name"), max_length=200, widget=UnfoldAdminTextInputWidget())
    allowed_models = forms.CharField(
        label=_("Models"),
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Model names separated by commas. Empty: every model of the tenant."),
    )
    expires_at = forms.SplitDateTimeField(
        label=_("Expires"), required=False, widget=UnfoldAdminSplitDateTimeWidget()
    )

    def allowed(self) -> list[str] | None:
        names = [name.strip() for name in self.cleaned_data["allowed_models"].split(",")]
        return [name for name in names if name] or None


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    """The prefix is what is known of a key."""

    list_display = ["name", "shown_prefix", "tenant", "member", "shown_state", "last_used_at", "expires_at"]
    list_filter = ["tenant", ("revoked_at", admin.EmptyFieldListFilter)]
    search_fields = ["name", "prefix", "public_id", "member__username", "tenant__slug"]
    list_select_related = ["tenant", "member"]
    fields = [
        "name",
        "public_id",
        "shown_prefix",
        "tenant",
        "member",
        "shown_state",
        "models",
        "created_at",
        "expires_at",
        "last_used_at",
        "revoked_at",
    ]
    actions_list = ["issue"]
    actions_detail = ["rotate", "revoke"]
    actions = ["revoke_selected"]

    @display(description=_("key"))
    def shown_prefix(self, row: ApiKey) -> str:
        return f"{row.prefix}…"

    @display(description=_("state"))
    def shown_state(self, row: ApiKey) -> str:
        if row.revoked_at:
            return coloured(_("revoked"), "danger")
        if row.expires_at and row.expires_at <= utc_now():
            return coloured(_("expired"), "warning")
        return coloured(_("active"), "success")

    @display(description=_("allowed models"))
    def models(self, row: ApiKey) -> str:
        return (
            str(_("all")) if row.allowed_models is None else ", ".join(row.allowed_models) or str(_("none"))
        )

    @action(description=_("Issue a key"), url_path="issue", permissions=["operate"], icon="key")
    def issue(self, request: HttpRequest) -> HttpResponse:
        form = IssueForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            given = form.cleaned_data
            try:
                key, plain = services.issue_key(
                    actor=viewer_of(request.user),
                    tenant=given["tenant"],
                    member=given["member"],
                    name=given["name"],
                    allowed_models=form.allowed(),
                    expires_at=given["expires_at"],
                    now=utc_now(),
                )
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                return self._shown_once(request, key, plain)
        return self.show(
            request,
            "console/confirm.html",
            _("Issue a key"),
            form=form,
            question=_("The key is shown once, on the next page."),
            button=_("Issue"),
            back=self.page_of(),
        )

    @action(description=_("Rotate"), url_path="rotate", permissions=["operate"])
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self.found(request, object_id)
        if request.method == "POST":
            try:
                key, plain = services.rotate_key(actor=viewer_of(request.user), key=key, now=utc_now())
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                return self._shown_once(request, key, plain)
        return self.show(
            request,
            "console/confirm.html",
            _("Rotate %(name)s") % {"name": key.name},
            question=_("A new key takes its place; programs that use the old one are refused at once."),
            button=_("Rotate"),
            back=self.page_of(key),
        )

    @action(description=_("Revoke"), url_path="revoke", permissions=["operate"])
    def revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self.found(request, object_id)

        def act() -> str:
            services.revoke_key(actor=viewer_of(request.user), key=key, now=utc_now())
            return _("%(name)s is revoked.") % {"name": key.name}

        return self.ask_then(
            request,
            title=_("Revoke %(name)s") % {"name": key.name},
            question=_("Programs that use it are refused at once. This can not be undone."),
            button=_("Revoke"),
            back=self.page_of(key),
            act=act,
        )

    @admin.action(description=_("Revoke the selected keys"), permissions=["operate"])
    def revoke_selected(self, request: HttpRequest, queryset: Any) -> None:
        for key in queryset:
            services.revoke_key(actor=viewer_of(request.user), key=key, now=utc_now())
        self.message_user(request, _("Revoked."))

    def _shown_once(self, request: HttpRequest, key: ApiKey, plain: str) -> HttpResponse:
        return self.show(
            request,
            "console/shown_once.html",
            _("Key of %(name)s") % {"name": key.name},
            secret=plain,
            note=_("Copy it now: it is never shown again. Lost means rotate."),
            back=self.page_of(key),
        )
