"""API keys: issue, change, rotate, revoke. Neither key nor hash stands on any page but the one that makes it
(TEN-06), and that page is not kept by caches."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminSplitDateTimeWidget,
    UnfoldAdminTextInputWidget,
)

from apps.console.admin.base import ReadOnlyAdmin, coloured, tell_refusal, to_the_second
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.tenants import services
from apps.tenants.models import ApiKey, KeyScope, Tenant, User, usual_scopes
from apps.tenants.scope import viewer_of


def _listed(text: str) -> list[str] | None:
    """What stands between commas; None for nothing."""
    return [part.strip() for part in text.split(",") if part.strip()] or None


class LimitsForm(forms.Form):
    """Name and limits of a key."""

    name = forms.CharField(label=_("Name"), max_length=200, widget=UnfoldAdminTextInputWidget())
    allowed_models = forms.CharField(
        label=_("Models"),
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Model names separated by commas. Empty: every model of the tenant."),
    )
    allowed_addresses = forms.CharField(
        label=_("Addresses"),
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Addresses or networks such as 10.0.0.0/8, separated by commas. Empty: from anywhere."),
    )
    expires_at = forms.SplitDateTimeField(
        label=_("Expires"), required=False, widget=UnfoldAdminSplitDateTimeWidget()
    )
    scopes = forms.MultipleChoiceField(
        label=_("It may"),
        required=False,
        choices=KeyScope.choices,
        initial=usual_scopes,
        widget=UnfoldAdminCheckboxSelectMultipleWidget(),
        help_text=_("The last one is for testers. None chosen: the first two."),
    )

    def limits(self) -> dict[str, Any]:
        """As the services take them."""
        given = self.cleaned_data
        return {
            "scopes": given["scopes"] or usual_scopes(),
            "allowed_models": _listed(given["allowed_models"]),
            "allowed_addresses": _listed(given["allowed_addresses"]),
            "expires_at": given["expires_at"],
        }


class IssueForm(LimitsForm):
    """For whom a new key is, too."""

    tenant = forms.ModelChoiceField(Tenant.objects.all(), label=_("Tenant"), widget=UnfoldAdminSelectWidget())
    member = forms.ModelChoiceField(
        User.objects.filter(is_active=True), label=_("Person"), widget=UnfoldAdminSelectWidget()
    )
    field_order = ["tenant", "member", "name"]


class RotateForm(forms.Form):
    """How long the value before works on."""

    overlap_seconds = forms.IntegerField(
        label=_("The old key works on for (s)"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text=_("0 or empty: it ends at once."),
    )


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
        "shown_scopes",
        "models",
        "addresses",
        "former",
        "created_at",
        "expires_at",
        "last_used_at",
        "revoked_at",
    ]
    actions_list = ["issue"]
    actions_detail = ["change_limits", "rotate", "revoke"]
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

    @display(description=_("scopes"))
    def shown_scopes(self, row: ApiKey) -> str:
        return ", ".join(row.scopes)

    @display(description=_("allowed addresses"))
    def addresses(self, row: ApiKey) -> str:
        return str(_("all")) if row.allowed_addresses is None else ", ".join(row.allowed_addresses)

    @display(description=_("the old key"))
    def former(self, row: ApiKey) -> str:
        if row.former_until is None or row.former_until <= utc_now():
            return "-"
        until = to_the_second(row.former_until)
        return _("%(prefix)s…, until %(until)s") % {"prefix": row.former_prefix, "until": until}

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
                    **form.limits(),
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

    @action(description=_("Change"), url_path="limits", permissions=["operate"])
    def change_limits(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self.found(request, object_id)
        present = {
            "name": key.name,
            "allowed_models": ", ".join(key.allowed_models or ()),
            "allowed_addresses": ", ".join(key.allowed_addresses or ()),
            "expires_at": key.expires_at,
            "scopes": key.scopes,
        }
        form = LimitsForm(request.POST or None, initial=present)
        if request.method == "POST" and form.is_valid():
            given = {"name": form.cleaned_data["name"], **form.limits()}
            changes = {name: given[name] for name in form.changed_data}
            try:
                services.change_key(actor=viewer_of(request.user), key=key, changes=changes, now=utc_now())
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                return redirect(self.page_of(key))
        return self.show(
            request,
            "console/confirm.html",
            _("Change %(name)s") % {"name": key.name},
            form=form,
            question=_("Gateways follow within two seconds."),
            button=_("Save"),
            back=self.page_of(key),
        )

    @action(description=_("Rotate"), url_path="rotate", permissions=["operate"])
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        key = self.found(request, object_id)
        form = RotateForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid():
            try:
                key, plain = services.rotate_key(
                    actor=viewer_of(request.user),
                    key=key,
                    now=utc_now(),
                    overlap_s=form.cleaned_data["overlap_seconds"] or 0,
                )
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                return self._shown_once(request, key, plain)
        return self.show(
            request,
            "console/confirm.html",
            _("Rotate %(name)s") % {"name": key.name},
            form=form,
            question=_(
                "A new key takes its place. With an overlap programs can be changed one after the other."
            ),
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
