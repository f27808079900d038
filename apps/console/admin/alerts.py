"""Alerts, the webhooks that they are told to, and each message on its way (OPS-09)."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget

from apps.alerts import services
from apps.alerts.kinds import KINDS, Severity
from apps.alerts.models import Alert, Delivery, Webhook
from apps.alerts.services.webhooks import host_of
from apps.console.admin.base import OperatorAdmin, ReadOnlyAdmin, coloured
from apps.core import texts
from apps.core.clock import utc_now
from apps.tenants.scope import viewer_of


@admin.register(Alert)
class AlertAdmin(ReadOnlyAdmin):
    """Opened and closed by what is, not by hand; an operator says that somebody looks after it."""

    list_display = ["sentence", "shown_state", "severity", "opened_at", "last_at", "times", "closed_at"]
    list_filter = [
        "code",
        ("closed_at", admin.EmptyFieldListFilter),
        ("acknowledged_at", admin.EmptyFieldListFilter),
    ]
    search_fields = ["code", "object_id", "public_id"]
    fields = [
        "sentence",
        "shown_state",
        "severity",
        "code",
        "object_id",
        "params",
        ("opened_at", "last_at", "times"),
        "closed_at",
        ("acknowledged_at", "acknowledged_by"),
    ]
    actions_detail = ["acknowledge"]
    actions = ["acknowledge_selected"]

    @display(description=_("what"))
    def sentence(self, row: Alert) -> str:
        return texts.say(row.code, row.params)

    @display(description=_("state"))
    def shown_state(self, row: Alert) -> str:
        if row.closed_at:
            return coloured(_("over"), "success")
        return coloured(_("acknowledged"), "info") if row.acknowledged_at else coloured(_("open"), "danger")

    @display(description=_("severity"))
    def severity(self, row: Alert) -> str:
        kind = KINDS.get(row.code)
        critical = kind is not None and kind.severity is Severity.CRITICAL
        return coloured(_("critical"), "danger") if critical else coloured(_("warning"), "warning")

    @action(description=_("Acknowledge"), url_path="acknowledge", permissions=["operate"])
    def acknowledge(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.found(request, object_id)

        def act() -> Any:
            services.acknowledge_alerts(actor=viewer_of(request.user), alerts=[row], now=utc_now())
            return _("Noted that you look after it.")

        return self.ask_then(
            request,
            title=_("Acknowledge"),
            question=_("It stays open until what it tells of is over."),
            button=_("Acknowledge"),
            back=self.page_of(row),
            act=act,
        )

    @admin.action(description=_("Acknowledge the selected alerts"), permissions=["operate"])
    def acknowledge_selected(self, request: HttpRequest, queryset: Any) -> None:
        services.acknowledge_alerts(actor=viewer_of(request.user), alerts=queryset, now=utc_now())
        self.message_user(request, _("Noted that you look after them."))


class WebhookForm(forms.ModelForm):
    """The secret goes in and never comes out."""

    secret = forms.CharField(
        label=_("Secret"),
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text=_("At least 16 characters; it signs each message. Empty keeps the present one."),
    )

    class Meta:
        model = Webhook
        fields = ["name", "url", "secret", "active"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is None:
            self.fields["secret"].help_text = _("At least 16 characters; it signs each message.")


@admin.register(Webhook)
class WebhookAdmin(OperatorAdmin):
    """Where alerts are told to. The list shows hosts only: a path can be a credential."""

    form = WebhookForm
    list_display = ["name", "host", "active", "last_message", "next_at"]
    search_fields = ["name"]
    actions_detail = ["send_test"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)

    @display(description=_("host"))
    def host(self, row: Webhook) -> str:
        return host_of(row.url)

    @display(description=_("last message"))
    def last_message(self, row: Webhook) -> str:
        last = row.deliveries.first()
        return delivery_state(last) if last else "-"

    def save_model(self, request: HttpRequest, obj: Webhook, form: Any, change: Any) -> None:
        given, actor = form.cleaned_data, viewer_of(request.user)
        values = {name: given[name] for name in ("name", "url", "secret")}
        if change:
            services.change_webhook(actor=actor, webhook=obj, active=given["active"], **values)
        else:
            obj.pk = services.create_webhook(actor=actor, now=utc_now(), **values).pk

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # Its messages go with it; nobody deletes those by themselves.
        deleted, counts, _perms, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    def delete_model(self, request: HttpRequest, obj: Webhook) -> None:
        services.delete_webhook(actor=viewer_of(request.user), webhook=obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for row in queryset:
            services.delete_webhook(actor=viewer_of(request.user), webhook=row)

    @action(description=_("Send a test"), url_path="test", permissions=["operate"])
    def send_test(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.found(request, object_id)

        def act() -> Any:
            services.send_test(actor=viewer_of(request.user), webhook=row, now=utc_now())
            return _("A test is on its way; see Deliveries for what became of it.")

        return self.ask_then(
            request,
            title=_("Send a test"),
            question=_("A message that stands for no alert is sent there now."),
            button=_("Send"),
            back=self.page_of(row),
            act=act,
        )


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    """What became of each message."""

    list_display = ["public_id", "webhook", "event", "shown_state", "attempts", "delivered_at"]
    list_filter = ["webhook", "event"]
    search_fields = ["public_id"]
    list_select_related = ["webhook"]
    fields = [
        "public_id",
        ("webhook", "event", "alert"),
        ("shown_state", "why"),
        ("attempts", "last_status"),
        ("created_at", "delivered_at"),
        "body",
    ]

    @display(description=_("state"))
    def shown_state(self, row: Delivery) -> str:
        return delivery_state(row)

    @display(description=_("why"))
    def why(self, row: Delivery) -> str:
        return texts.say(row.last_error) if row.last_error else "-"


def delivery_state(row: Delivery) -> str:
    """Delivered, on its way or given up, as a coloured word."""
    if row.delivered_at:
        return coloured(_("delivered"), "success")
    if not row.waiting:
        return coloured(_("given up"), "danger")
    return coloured(_("is tried again"), "warning") if row.attempts else coloured(_("on its way"), "info")
