"""Nodes and their join tokens. What operators change of a node goes through fleet's services."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminTextInputWidget

from apps.alerts.selectors import open_alerts_of
from apps.console.admin.base import OperatorAdmin, ago, coloured, tell_refusal
from apps.console.admin.cards import CardRows, ModelRows
from apps.console.admin.joining import join_token_page
from apps.core import texts
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.fleet import services
from apps.fleet.models import DoorState, Duty, Node
from apps.fleet.selectors import has_door, is_online
from apps.fleet.services.changes import PLAIN_FIELDS
from apps.tenants.scope import viewer_of
from apps.upkeep import selectors as upkeep
from apps.upkeep import services as upkeep_services
from apps.upkeep.selectors import next_step as upkeep_next


class DeleteNodeForm(forms.Form):
    """The word that deletes a node which still holds work."""

    force = forms.CharField(
        label=_("Name of the node"),
        required=False,
        max_length=200,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Only where it still holds tasks: they are placed anew, whatever runs there."),
    )


@admin.register(Node)
class NodeAdmin(OperatorAdmin):
    """One machine with one agent. A node joins with a token; it is never added by hand."""

    list_display = [
        "name",
        "online",
        "last_seen",
        "card_count",
        "runtime",
        "open_for_work",
        "shown_duty",
        "door",
        "open_to_all",
    ]
    list_filter = ["cordoned", "duty", "open_to_all", "runtime", "pool"]
    search_fields = ["name", "hostname", "public_id", "machine_id"]
    list_select_related = ["liveness", "sample"]
    autocomplete_fields = ["allowed_tenants", "allowed_groups"]
    inlines = [CardRows, ModelRows]
    actions_list = ["new_join_token"]
    actions_detail = [
        "cordon",
        "uncordon",
        "drain",
        "maintain",
        "empty_by_force",
        "resume",
        "release_cards",
        "remove",
    ]
    actions = ["cordon_selected", "uncordon_selected"]
    readonly_fields = [
        "public_id",
        "hostname",
        "machine_id",
        "online",
        "last_seen",
        "open_for_work",
        "shown_duty",
        "duty_since",
        "what_is_left",
        "door",
        "door_reason",
        "alerts",
        "clock",
        "runtime",
        "agent_version",
        "contract_version",
        "cpu_count",
        "memory_total_mb",
        "load",
        "dial",
        "engines",
        "images",
        "volume_prefixes",
        "host_ipc",
        "in_container",
        "port_first",
        "port_last",
        "joined_at",
    ]
    fieldsets = (
        (None, {"fields": ["name", "online", "last_seen", "open_for_work", "alerts", "pool", "labels"]}),
        (_("Upkeep"), {"fields": [("shown_duty", "duty_since"), "what_is_left"]}),
        (_("Placing"), {"fields": ["load", "inference_cap"]}),
        (_("Who may use it"), {"fields": ["open_to_all", "allowed_tenants", "allowed_groups"]}),
        (
            _("Machine"),
            {
                "fields": [
                    "public_id",
                    "hostname",
                    "machine_id",
                    "runtime",
                    "engines",
                    "images",
                    "volume_prefixes",
                    "host_ipc",
                    "in_container",
                    "cpu_count",
                    "memory_total_mb",
                    "clock",
                    "agent_version",
                    "contract_version",
                    "dial",
                    "door",
                    "door_reason",
                    "port_first",
                    "port_last",
                    "joined_at",
                ]
            },
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @display(description=_("online"))
    def online(self, row: Node) -> str:
        seen = row.liveness.last_seen_at if hasattr(row, "liveness") else None
        if is_online(seen, utc_now()):
            return coloured(_("online"), "success")
        return coloured(_("offline"), "danger")

    @display(description=_("last seen"), ordering="liveness__last_seen_at")
    def last_seen(self, row: Node) -> str | None:
        return ago(row.liveness.last_seen_at, utc_now()) if hasattr(row, "liveness") else None

    @display(description=_("open alerts"))
    def alerts(self, row: Node) -> SafeString | str:
        found = open_alerts_of([row.public_id]).get(row.public_id, [])
        told = [(texts.say(alert.code, alert.params),) for alert in found]
        return format_html_join("", "<p>{}</p>", told) if told else "-"

    @display(description=_("clock off by"))
    def clock(self, row: Node) -> str | None:
        skew = row.liveness.clock_skew_s if hasattr(row, "liveness") else None
        return None if skew is None else f"{round(skew, 1) + 0.0:.1f} s"  # + 0.0: no "-0.0"

    @display(description=_("load"))
    def load(self, row: Node) -> str | None:
        """In percent; `?` = not told."""
        if not hasattr(row, "sample"):
            return None
        told = (row.sample.cpu_percent, row.sample.memory_percent, row.sample.disk_percent)
        cpu, memory, disk = ("?" if value is None else f"{value:.0f} %" for value in told)
        return _("processors %(cpu)s, memory %(memory)s, disk %(disk)s") % {
            "cpu": cpu,
            "memory": memory,
            "disk": disk,
        }

    @display(description=_("cards"))
    def card_count(self, row: Node) -> int:
        return row.cards.filter(present=True).count()

    @display(description=_("new work"), ordering="cordoned")
    def open_for_work(self, row: Node) -> str:
        return coloured(_("closed"), "warning") if row.cordoned else coloured(_("open"), "success")

    @display(description=_("duty"), ordering="duty")
    def shown_duty(self, row: Node) -> str:
        return coloured(row.get_duty_display(), "success" if row.duty == Duty.SERVICE else "warning")

    @display(description=_("what is left on it"))
    def what_is_left(self, row: Node) -> str:
        left = upkeep.work_left(row)
        lines = [(f"{one.service} / {one.name}", one.tenant, one.text) for one in left]
        done = texts.say("drain_done")
        lines += [(service, tenant, done) for tenant, service in upkeep.work_done(row, left)]
        code, params = upkeep_next(row, len(left))
        after = format_html("<p>{}</p>", texts.say(code, params))
        return format_html_join("", "<p><strong>{}</strong> · {} · {}</p>", lines) + after

    @display(description=_("door"))
    def door(self, row: Node) -> str | None:
        if not hasattr(row, "liveness") or not has_door(row.dial):
            return None
        colour = {DoorState.OPEN: "success", DoorState.CLOSED: "danger"}
        state = DoorState(row.liveness.door_state)
        return coloured(state.label, colour.get(state, "warning"))

    @display(description=_("why the door is closed"))
    def door_reason(self, row: Node) -> str | None:
        code = row.liveness.door_reason if hasattr(row, "liveness") and has_door(row.dial) else ""
        return texts.say(code) if code else None

    def save_model(self, request: HttpRequest, obj: Node, form: Any, change: Any) -> None:
        changed = {name: getattr(obj, name) for name in form.changed_data if name in PLAIN_FIELDS}
        services.change_node(actor=viewer_of(request.user), node=obj, changes=changed)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        for formset in formsets:  # read-only rows; the change's log entry asks what they saved
            self.save_formset(request, form, formset, change=change)
        given = form.cleaned_data
        services.change_node(
            actor=viewer_of(request.user),
            node=form.instance,
            changes={},
            allowed_tenants=[tenant.slug for tenant in given["allowed_tenants"]],
            allowed_groups=[group.name for group in given["allowed_groups"]],
        )

    @action(description=_("New join token"), url_path="join-token", permissions=["operate"], icon="add")
    def new_join_token(self, request: HttpRequest) -> HttpResponse:
        return join_token_page(self, request)

    @action(description=_("Cordon"), url_path="cordon", permissions=["operate"])
    def cordon(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.found(request, object_id)

        def act() -> str:
            services.cordon(actor=viewer_of(request.user), node=node)
            return _("%(name)s takes no new work.") % {"name": node.name}

        return self.ask_then(
            request,
            title=_("Cordon %(name)s") % {"name": node.name},
            question=_("It takes no new work; what runs there goes on."),
            button=_("Cordon"),
            back=self.page_of(node),
            act=act,
        )

    @action(description=_("Uncordon"), url_path="uncordon", permissions=["operate"])
    def uncordon(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.found(request, object_id)

        def act() -> str:
            services.uncordon(actor=viewer_of(request.user), node=node)
            return _("%(name)s takes new work again.") % {"name": node.name}

        return self.ask_then(
            request,
            title=_("Uncordon %(name)s") % {"name": node.name},
            question=_("It takes new work again."),
            button=_("Uncordon"),
            back=self.page_of(node),
            act=act,
        )

    @action(description=_("Release cards"), url_path="release-cards", permissions=["operate"])
    def release_cards(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.found(request, object_id)

        def act() -> str:
            count = services.release_cards(actor=viewer_of(request.user), node=node, now=utc_now())
            return texts.say("cards_released", {"cards": count})

        return self.ask_then(
            request,
            title=_("Release the cards of %(name)s") % {"name": node.name},
            question=_("Its cards in quarantine take new work, whatever is held there."),
            button=_("Release cards"),
            back=self.page_of(node),
            act=act,
        )

    @action(description=_("Drain"), url_path="drain", permissions=["operate"])
    def drain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._turn(
            request,
            object_id,
            upkeep_services.drain_node,
            _("Drain %(name)s"),
            _(
                "It takes no new work and its inference moves to other nodes; each replica serves until its "
                "replacement is ready."
            ),
            _("Drain"),
        )

    @action(description=_("Maintenance"), url_path="maintenance", permissions=["operate"])
    def maintain(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._turn(
            request,
            object_id,
            upkeep_services.maintain_node,
            _("Put %(name)s into maintenance"),
            _("As a drain; besides, its agent takes nothing on and its alerts are held back."),
            _("Maintenance"),
        )

    @action(description=_("Empty by force"), url_path="force", permissions=["operate"])
    def empty_by_force(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._turn(
            request,
            object_id,
            partial(upkeep_services.force_node, after_s=0),
            _("Empty %(name)s by force"),
            _(
                "What is still there is stopped now and starts elsewhere when there is a place: services "
                "have a gap, training and containers begin anew."
            ),
            _("Empty by force"),
        )

    @action(description=_("Back into service"), url_path="resume", permissions=["operate"])
    def resume(self, request: HttpRequest, object_id: str) -> HttpResponse:
        return self._turn(
            request,
            object_id,
            upkeep_services.resume_node,
            _("Put %(name)s back into service"),
            _("Drain, maintenance and cordon end; it takes new work."),
            _("Back into service"),
        )

    def _turn(
        self,
        request: HttpRequest,
        object_id: str,
        turn: Callable[..., bool],
        title: Any,
        question: Any,
        button: Any,
    ) -> HttpResponse:
        node = self.found(request, object_id)

        def act() -> str:
            turn(actor=viewer_of(request.user), node=node, now=utc_now())
            return texts.say(*upkeep_next(node, len(upkeep.work_left(node))))

        return self.ask_then(
            request,
            title=title % {"name": node.name},
            question=question,
            button=button,
            back=self.page_of(node),
            act=act,
        )

    @action(description=_("Delete"), url_path="remove", permissions=["operate"])
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        node = self.found(request, object_id)
        form = DeleteNodeForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            actor, force = viewer_of(request.user), form.cleaned_data["force"]
            try:
                upkeep_services.delete_node(actor=actor, node=node, force=force, now=utc_now())
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                messages.success(request, texts.say("upkeep_deleted"))
                return redirect(self.page_of())
        return self.show(
            request,
            "console/confirm.html",
            _("Delete %(name)s") % {"name": node.name},
            form=form,
            question=_("Its credential ends. Its agent is refused and goes on with what runs there."),
            button=_("Delete"),
            back=self.page_of(node),
        )

    @admin.action(description=_("Cordon the selected nodes"), permissions=["operate"])
    def cordon_selected(self, request: HttpRequest, queryset: Any) -> None:
        for node in queryset:
            services.cordon(actor=viewer_of(request.user), node=node)
        self.message_user(request, _("They take no new work."))

    @admin.action(description=_("Uncordon the selected nodes"), permissions=["operate"])
    def uncordon_selected(self, request: HttpRequest, queryset: Any) -> None:
        for node in queryset:
            services.uncordon(actor=viewer_of(request.user), node=node)
        self.message_user(request, _("They take new work again."))
