"""Tenants, memberships and shared groups: all writes but the plain lists go through tenants' services."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from apps.console.admin.base import OperatorAdmin, ReadOnlyRows, coloured
from apps.core.clock import utc_now
from apps.tenants import mailing, services
from apps.tenants.models import Membership, Role, SharedGroup, Tenant, TenantStatus
from apps.tenants.quotas import KINDS
from apps.tenants.scope import viewer_of
from apps.tenants.services.tenants import SHARING


def limit_field(label: Any) -> forms.IntegerField:
    """A limit of a quota; empty = no limit."""
    return forms.IntegerField(
        label=label,
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
        help_text=_("Empty: no limit."),
    )


class TenantForm(forms.ModelForm):
    """A tenant with its limits in one form."""

    gpus = limit_field(_("GPUs"))
    task_groups = limit_field(_("Task groups"))
    replicas = limit_field(_("Replicas"))
    endpoints = limit_field(_("Endpoints"))
    tokens_per_day = limit_field(_("Tokens per day"))
    tokens_per_month = limit_field(_("Tokens per month"))

    class Meta:
        model = Tenant
        fields = ["slug", "name", *SHARING]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        quota = getattr(self.instance, "quota", None) if self.instance.pk else None
        for kind in KINDS:
            self.fields[kind].initial = getattr(quota, kind, None)

    def quota(self) -> dict[str, int | None]:
        """The limits as tenants' services take them."""
        return {kind: self.cleaned_data[kind] for kind in KINDS}

    def sharing(self) -> dict[str, Any]:
        """What tenants' services take of how it shares."""
        return {name: self.cleaned_data[name] for name in SHARING}


class MembershipRows(ReadOnlyRows):
    model = Membership
    fields = ["user", "role"]
    readonly_fields = ["user", "role"]


class SuspendForm(forms.Form):
    """Why a tenant is suspended; its members and callers are told."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Members and callers of its keys are told."),
    )


class InviteForm(forms.Form):
    """What an invited person becomes."""

    role = forms.ChoiceField(label=_("Role"), choices=Role.choices, widget=UnfoldAdminSelectWidget())
    email = forms.EmailField(
        label=_("E-mail"), required=False, widget=UnfoldAdminTextInputWidget(), max_length=254
    )


@admin.register(Tenant)
class TenantAdmin(OperatorAdmin):
    """TEN-01, TEN-07."""

    form = TenantForm
    list_display = ["slug", "name", "shown_status", "members", "created_at"]
    list_filter = ["status"]
    search_fields = ["slug", "name", "public_id"]
    readonly_fields = ["public_id", "shown_status", "suspended_reason", "created_at"]
    inlines = [MembershipRows]
    actions_detail = ["invite", "suspend", "resume"]
    fieldsets = (
        (None, {"fields": ["slug", "name", "public_id", "shown_status", "suspended_reason", "created_at"]}),
        (_("Sharing cards"), {"fields": [SHARING]}),
        (_("Quota"), {"fields": list(KINDS)}),
    )
    add_fieldsets = (
        (None, {"fields": ["slug", "name"]}),
        (_("Quota"), {"fields": list(KINDS)}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # The slug is in addresses, usage rows and configuration of callers: it stays.
        return [*self.readonly_fields, "slug"] if obj else self.readonly_fields

    @display(description=_("status"), ordering="status")
    def shown_status(self, row: Tenant) -> str:
        active = row.status == TenantStatus.ACTIVE
        return coloured(row.get_status_display(), "success" if active else "danger")

    @display(description=_("members"))
    def members(self, row: Tenant) -> int:
        return row.memberships.count()

    def save_model(self, request: HttpRequest, obj: Tenant, form: Any, change: Any) -> None:
        actor = viewer_of(request.user)
        if change:
            services.change_tenant(
                actor=actor, tenant=obj, name=obj.name, quota=form.quota(), sharing=form.sharing()
            )
            return
        made = services.create_tenant(actor=actor, slug=obj.slug, name=obj.name, quota=form.quota())
        obj.pk = made.pk
        obj.refresh_from_db()

    @action(description=_("Invite"), url_path="invite", permissions=["operate"])
    def invite(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self.found(request, object_id)
        form = InviteForm(request.POST or None)
        title = _("Invite into %(name)s") % {"name": tenant.name}
        if not (request.method == "POST" and form.is_valid()):
            return self.show(
                request,
                "console/confirm.html",
                title,
                form=form,
                question=_("The link makes whoever has it a member, once. It is shown on the next page."),
                button=_("Make a link"),
                back=self.page_of(tenant),
            )
        link, plain = services.invite(
            actor=viewer_of(request.user), tenant=tenant, now=utc_now(), **form.cleaned_data
        )
        address = services.link_address(link.purpose, plain)
        mailing.send_link(link, address)
        return self.show(
            request,
            "console/shown_once.html",
            title,
            secret=address,
            note=_("Give this link to the person. It is shown once and works once."),
            back=self.page_of(tenant),
        )

    @action(description=_("Suspend"), url_path="suspend", permissions=["operate"])
    def suspend(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self.found(request, object_id)
        form = SuspendForm(request.POST or None)
        title = _("Suspend %(name)s") % {"name": tenant.name}
        if not (request.method == "POST" and form.is_valid()):
            return self.show(
                request,
                "console/confirm.html",
                title,
                form=form,
                question=_(
                    "Its keys answer 403 with this reason and nothing of it is placed. Nothing is deleted."
                ),
                button=_("Suspend"),
                back=self.page_of(tenant),
            )
        return self.ask_then(
            request,
            title=title,
            question="",
            button="",
            back=self.page_of(tenant),
            act=lambda: self._suspend(request, tenant, form.cleaned_data["reason"]),
        )

    def _suspend(self, request: HttpRequest, tenant: Tenant, reason: str) -> str:
        services.suspend_tenant(actor=viewer_of(request.user), tenant=tenant, reason=reason)
        return _("%(name)s is suspended.") % {"name": tenant.name}

    @action(description=_("Resume"), url_path="resume", permissions=["operate"])
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        tenant = self.found(request, object_id)

        def act() -> str:
            services.resume_tenant(actor=viewer_of(request.user), tenant=tenant)
            return _("%(name)s is active.") % {"name": tenant.name}

        return self.ask_then(
            request,
            title=_("Resume %(name)s") % {"name": tenant.name},
            question=_("Its keys work again and what waits is placed."),
            button=_("Resume"),
            back=self.page_of(tenant),
            act=act,
        )


@admin.register(Membership)
class MembershipAdmin(OperatorAdmin):
    """TEN-02: who is what in which tenant."""

    list_display = ["user", "tenant", "role"]
    list_filter = ["role", "tenant"]
    search_fields = ["user__username", "tenant__slug", "tenant__name"]
    autocomplete_fields = ["user", "tenant"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["user", "tenant"] if obj else []

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: Any) -> None:
        actor = viewer_of(request.user)
        if change:
            services.change_role(actor=actor, membership=obj, role=obj.role, now=utc_now())
            return
        made = services.add_member(actor=actor, tenant=obj.tenant, user=obj.user, role=obj.role)
        obj.pk = made.pk

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        services.remove_member(actor=viewer_of(request.user), membership=obj, now=utc_now())

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for membership in queryset:
            self.delete_model(request, membership)


@admin.register(SharedGroup)
class SharedGroupAdmin(OperatorAdmin):
    """TEN-03: tenants that an operator declares to share cards and services."""

    list_display = ["name", "listed"]
    search_fields = ["name", "tenants__slug"]
    autocomplete_fields = ["tenants"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)

    @display(description=_("tenants"))
    def listed(self, row: SharedGroup) -> str:
        return ", ".join(row.tenants.values_list("slug", flat=True))
