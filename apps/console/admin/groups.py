"""Task groups: what they are and why; stop and delete go through inference's services."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from agent.contract.states import Desired, State
from apps.console.admin.base import ReadOnlyAdmin, ReadOnlyRows, state_label, tell_refusal, to_the_second
from apps.core import texts
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.inference import services
from apps.inference.explain import explain
from apps.inference.faults import describe_faults, faults_of
from apps.inference.selectors import describe, told
from apps.routing.models import ModelRoute
from apps.tenants.scope import SYSTEM, viewer_of
from apps.workloads.models import Event, Task, TaskGroup

SHOWN_FAULTS = 20


class ScaleForm(forms.Form):
    """Its bounds are the service's own, which the service checks."""

    replicas = forms.IntegerField(label=_("Replicas"), min_value=0, widget=UnfoldAdminIntegerFieldWidget())


class TaskRows(ReadOnlyRows):
    model = Task
    fields = ["name", "shown_state", "phase", "attempt", "node", "why"]
    readonly_fields = fields

    @display(description=_("state"))
    def shown_state(self, row: Task) -> str:
        return state_label(row.state)

    @display(description=_("reason"))
    def why(self, row: Task) -> str:
        return texts.say(row.reason_code, row.reason_params) if row.reason_code else ""


class RouteRows(ReadOnlyRows):
    model = ModelRoute
    fields = ["model_name", "priority", "weight", "version", "active"]
    readonly_fields = fields


class EventRows(ReadOnlyRows):
    model = Event
    fields = ["when", "task", "from_state", "to_state", "sentence", "actor"]
    readonly_fields = fields
    show_change_link = False
    ordering = ["-at", "-pk"]
    per_page = 30

    @display(description=_("at"))
    def when(self, row: Event) -> str:
        return to_the_second(row.at)

    @display(description=_("reason"))
    def sentence(self, row: Event) -> str:
        return texts.say(row.code, row.params)


@admin.register(TaskGroup)
class TaskGroupAdmin(ReadOnlyAdmin):
    """A group's state is derived from its tasks' (LIFE-05)."""

    list_display = ["name", "tenant", "model_name", "shown_state", "why", "replicas", "created_at"]
    list_filter = ["state", "task_type", "parallelism", "tenant", ("deleted_at", admin.EmptyFieldListFilter)]
    search_fields = ["name", "model_name", "public_id", "tenant__slug", "tasks__public_id"]
    list_select_related = ["tenant"]
    date_hierarchy = "created_at"
    inlines = [TaskRows, RouteRows, EventRows]
    actions_detail = ["sleep", "wake", "scale", "stop", "start", "delete_group"]
    actions = ["stop_selected"]
    fieldsets = (
        (
            None,
            {
                "fields": [
                    ("name", "public_id"),
                    ("tenant", "created_by"),
                    ("shown_state", "state_since"),
                    ("why", "replicas"),
                    "shown_warnings",
                    "explanation",
                    "faults",
                ]
            },
        ),
        (
            _("Service"),
            {
                "fields": [
                    ("model_name", "task_type"),
                    ("parallelism", "world_size"),
                    ("min_replicas", "max_replicas"),
                    ("priority", "preemptible"),
                    "lend",
                    ("enable_api", "gpu_memory_utilization"),
                    ("labels", "health_check"),
                    "inference_templates",
                    ("created_at", "deleted_at"),
                    "current_generation",
                ]
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).prefetch_related("tasks", "warning_rows")

    @display(description=_("state"), ordering="state")
    def shown_state(self, row: TaskGroup) -> str:
        return state_label(row.state)

    @display(description=_("reason"))
    def why(self, row: TaskGroup) -> str:
        return reason_of(row)

    @display(description=_("ready / wanted"))
    def replicas(self, row: TaskGroup) -> str:
        tasks = row.tasks.all()
        ready = sum(task.state == State.RUNNING for task in tasks)
        return f"{ready} / {sum(task.desired != Desired.STOP for task in tasks)}"

    @display(description=_("what comes next"))
    def explanation(self, row: TaskGroup) -> str:
        found = explain(SYSTEM, row, now=utc_now())
        return mark_safe(render_to_string("components/explanation.html", {"explanation": found})) or "-"  # noqa: S308 - a template's own, escaped

    @display(description=_("faults"))
    def faults(self, row: TaskGroup) -> str:
        found = describe_faults(SYSTEM, faults_of(SYSTEM, row)[:SHOWN_FAULTS])
        return mark_safe(render_to_string("components/faults.html", {"faults": found}))  # noqa: S308 - as above

    @display(description=_("warnings"))
    def shown_warnings(self, row: TaskGroup) -> str:
        sentences = [(texts.say(w.code, w.params),) for w in row.warning_rows.all()]
        return format_html_join("", "<p>{}</p>", sentences) or "-"

    @action(description=_("Sleep"), url_path="sleep", permissions=["operate"])
    def sleep(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)

        def act() -> str:
            done = services.sleep_service(actor=viewer_of(request.user), group=group, now=utc_now())
            return " ".join(told(viewer_of(request.user), done, "nothing_to_sleep"))

        return self.ask_then(
            request,
            title=_("Put %(name)s to sleep") % {"name": group.name},
            question=_("Running calls end, then its containers stop; places and cards stay reserved."),
            button=_("Sleep"),
            back=self.page_of(group),
            act=act,
        )

    @action(description=_("Wake"), url_path="wake", permissions=["operate"])
    def wake(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)

        def act() -> str:
            done = services.wake_service(actor=viewer_of(request.user), group=group, now=utc_now())
            return " ".join(told(viewer_of(request.user), done, "nothing_to_wake"))

        return self.ask_then(
            request,
            title=_("Wake %(name)s") % {"name": group.name},
            question=_("What sleeps of it starts again; calls reach it when it is ready."),
            button=_("Wake"),
            back=self.page_of(group),
            act=act,
        )

    @action(description=_("Scale"), url_path="scale", permissions=["operate"])
    def scale(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)
        present = describe(SYSTEM, group)["replicas"]["current"]
        form = ScaleForm(request.POST or None, initial={"replicas": present})
        if request.method == "POST" and form.is_valid():
            replicas, actor = form.cleaned_data["replicas"], viewer_of(request.user)
            try:
                act = services.scale_service(actor=actor, group=group, replicas=replicas, now=utc_now())
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                self.message_user(request, " ".join(told(actor, [act], "")))
                return redirect(self.page_of(group))
        return self.show(
            request,
            "console/confirm.html",
            _("Scale %(name)s") % {"name": group.name},
            question=_("Replicas that are taken away end their running calls first; 0 leaves one asleep."),
            form=form,
            button=_("Scale"),
            back=self.page_of(group),
        )

    @action(description=_("Stop"), url_path="stop", permissions=["operate"])
    def stop(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)

        def act() -> str:
            moved = services.stop_group(actor=viewer_of(request.user), group=group, now=utc_now()).moved
            return told_to_stop(moved)

        return self.ask_then(
            request,
            title=_("Stop %(name)s") % {"name": group.name},
            question=_("Its tasks end; cards and ports are freed when their nodes confirm it."),
            button=_("Stop"),
            back=self.page_of(group),
            act=act,
        )

    @action(description=_("Start again"), url_path="start", permissions=["operate"])
    def start(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)

        def act() -> str:
            n = services.start_group(actor=viewer_of(request.user), group=group, now=utc_now())
            return ngettext("%(n)s task waits for a place.", "%(n)s tasks wait for a place.", n) % {"n": n}

        return self.ask_then(
            request,
            title=_("Start %(name)s again") % {"name": group.name},
            question=_("Stopped and failed tasks are placed anew."),
            button=_("Start again"),
            back=self.page_of(group),
            act=act,
        )

    @action(description=_("Delete"), url_path="delete-group", permissions=["operate"])
    def delete_group(self, request: HttpRequest, object_id: str) -> HttpResponse:
        group = self.found(request, object_id)

        def act() -> str:
            services.delete_service(actor=viewer_of(request.user), group=group, now=utc_now())
            return _("%(name)s is deleted.") % {"name": group.name}

        return self.ask_then(
            request,
            title=_("Delete %(name)s") % {"name": group.name},
            question=_("Its people see it no more, its routes and endpoint end, its tasks are stopped."),
            button=_("Delete"),
            back=self.page_of(group),
            leads_to=self.page_of(),
            act=act,
        )

    @admin.action(description=_("Stop the selected groups"), permissions=["operate"])
    def stop_selected(self, request: HttpRequest, queryset: Any) -> None:
        actor, now = viewer_of(request.user), utc_now()
        moved = sum(services.stop_group(actor=actor, group=group, now=now).moved for group in queryset)
        self.message_user(request, told_to_stop(moved))


def reason_of(group: TaskGroup) -> str:
    """The sentence of the first task that is in the group's own state, else of any; tasks prefetched."""
    tasks = sorted(group.tasks.all(), key=lambda task: (task.state != group.state, task.rank))
    said = [texts.say(task.reason_code, task.reason_params) for task in tasks if task.reason_code]
    return said[0] if said else ""


def told_to_stop(moved: int) -> str:
    """How many tasks a stop reached."""
    if not moved:
        return str(_("Nothing to stop: it is stopped, or on its way there."))
    return ngettext("%(n)s task was told to stop.", "%(n)s tasks were told to stop.", moved) % {"n": moved}
