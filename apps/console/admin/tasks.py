"""Tasks: where they are and why, the refusals as sentences, the live log. States are read only."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from apps.console.admin.base import ReadOnlyAdmin, ReadOnlyRows, further_refusals, state_label
from apps.console.admin.groups import told_to_stop
from apps.console.queue import build_queue
from apps.core import texts
from apps.core.clock import utc_now
from apps.inference import services
from apps.inference.selectors import told
from apps.tenants.scope import viewer_of
from apps.workloads.models import Claim, Task


class ClaimRows(ReadOnlyRows):
    model = Claim
    fields = ["attempt", "node", "incarnation", "claimed_at", "released_at"]
    readonly_fields = fields


@admin.register(Task)
class TaskAdmin(ReadOnlyAdmin):
    """One container or engine process; its live log is below its facts."""

    list_display = ["name", "group", "shown_state", "phase", "attempt", "node", "why", "state_since"]
    list_filter = ["state", "phase", "node", "group__tenant"]
    search_fields = ["name", "public_id", "group__name", "image", "node__name"]
    list_select_related = ["group", "node"]
    change_form_outer_after_template = "console/task_log.html"
    inlines = [ClaimRows]
    actions_detail = ["sleep", "wake", "stop"]
    actions = ["stop_selected"]
    fieldsets = (
        (
            None,
            {
                "fields": [
                    ("name", "public_id"),
                    ("group", "node"),
                    ("shown_state", "phase"),
                    ("why", "desired"),
                    "shown_refusals",
                    "shown_error",
                    ("attempt", "rebuilds"),
                    ("template_index", "node_refusals"),
                    ("state_since", "running_since"),
                    ("deadline_at", "not_before"),
                ]
            },
        ),
        (
            _("What was asked for"),
            {
                "fields": [
                    ("image", "engine"),
                    ("model_path", "timeout_seconds"),
                    ("gpu_required", "gpu_type"),
                    ("rank", "generation"),
                    ("kv_offload_gb", "estimated_gpu_memory_mb"),
                    ("ports", "volumes"),
                    ("env_names", "command"),
                    "created_at",
                ]
            },
        ),
    )

    class Media:
        css = {"all": ["css/log.css"]}

    def get_urls(self) -> list[Any]:
        return [path("queue/", self.guarded(self.queue), name="workloads_task_queue"), *super().get_urls()]

    def queue(self, request: HttpRequest) -> HttpResponse:
        """What waits for a place, and for what."""
        queue = build_queue(request.GET.get("type", ""), request.GET.get("page"))
        return self.show(request, "console/queue.html", _("Queue"), opts=None, queue=queue)

    @display(description=_("state"), ordering="state")
    def shown_state(self, row: Task) -> str:
        return state_label(row.state)

    @display(description=_("reason"))
    def why(self, row: Task) -> str:
        return texts.say(row.reason_code, row.reason_params) if row.reason_code else ""

    @display(description=_("why no node takes it"))
    def shown_refusals(self, row: Task) -> str:
        return format_html_join("", "<p>{}</p>", ((text,) for text in further_refusals(row))) or "-"

    @display(description=_("last error"))
    def shown_error(self, row: Task) -> str:
        error = row.last_error
        if not error:
            return "-"
        sentence = texts.say(error.get("code", ""), error.get("params"))
        lines = "\n".join(map(str, error.get("log_lines") or []))
        return format_html("<p>{}</p><pre class='whitespace-pre-wrap'>{}</pre>", sentence, lines)

    @display(description=_("environment"))
    def env_names(self, row: Task) -> str:
        # Values may be secrets of the tenant; their names suffice to mend a typing error.
        return ", ".join(sorted(row.env)) or "-"

    @action(description=_("Sleep"), url_path="sleep", permissions=["operate"])
    def sleep(self, request: HttpRequest, object_id: str) -> HttpResponse:
        task = self.found(request, object_id)

        def act() -> str:
            done = services.sleep_task(actor=viewer_of(request.user), task=task, now=utc_now())
            return " ".join(told(viewer_of(request.user), [done], ""))

        return self.ask_then(
            request,
            title=_("Put %(name)s to sleep") % {"name": task.name},
            question=_("Running calls end, then its container stops; place and cards stay reserved."),
            button=_("Sleep"),
            back=self.page_of(task),
            act=act,
        )

    @action(description=_("Wake"), url_path="wake", permissions=["operate"])
    def wake(self, request: HttpRequest, object_id: str) -> HttpResponse:
        task = self.found(request, object_id)

        def act() -> str:
            done = services.wake_task(actor=viewer_of(request.user), task=task, now=utc_now())
            return " ".join(told(viewer_of(request.user), [done], ""))

        return self.ask_then(
            request,
            title=_("Wake %(name)s") % {"name": task.name},
            question=_("What sleeps of it starts again; calls reach it when it is ready."),
            button=_("Wake"),
            back=self.page_of(task),
            act=act,
        )

    @action(description=_("Stop"), url_path="stop", permissions=["operate"])
    def stop(self, request: HttpRequest, object_id: str) -> HttpResponse:
        task = self.found(request, object_id)

        def act() -> str:
            moved = services.stop_task(actor=viewer_of(request.user), task=task, now=utc_now()).moved
            return told_to_stop(moved)

        return self.ask_then(
            request,
            title=_("Stop %(name)s") % {"name": task.name},
            question=_("It ends; its cards and ports are freed when its node confirms it."),
            button=_("Stop"),
            back=self.page_of(task),
            act=act,
        )

    @admin.action(description=_("Stop the selected tasks"), permissions=["operate"])
    def stop_selected(self, request: HttpRequest, queryset: Any) -> None:
        actor, now = viewer_of(request.user), utc_now()
        moved = sum(services.stop_task(actor=actor, task=task, now=now).moved for task in queryset)
        self.message_user(request, told_to_stop(moved))
