"""Services of the viewer's tenants: list, page, create, stop, start, delete. All rules are inference's."""

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from agent.contract.states import State, TaskType
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.core.scopes import SIGNED_IN, TENANT
from apps.inference import selectors as inference
from apps.inference import services
from apps.inference.dry_run import try_service
from apps.inference.explain import explain
from apps.inference.faults import describe_faults, faults_of
from apps.inference.validation.replicas import read_replicas
from apps.portal.forms import CreateServiceForm, tenant_choices
from apps.portal.pages import is_fragment, page
from apps.tenants import scope
from apps.tenants.models import Tenant, TenantStatus
from apps.tenants.scope import Viewer, viewer_of
from apps.workloads import selectors as workloads
from apps.workloads.models import TaskGroup
from apps.workloads.services import STARTABLE, STOPPABLE

SHOWN_EVENTS = 50
SHOWN_FAULTS = 20
SHOWN_SERVICES = 25


@page(SIGNED_IN)
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The services are the first page."""
    return redirect("portal:services")


@page(TENANT)
@require_safe
def service_list(request: HttpRequest) -> HttpResponse:
    """All services that the viewer may see; htmx asks for the list alone."""
    viewer = viewer_of(request.user)
    shown_page = Paginator(workloads.groups(viewer), SHOWN_SERVICES).get_page(request.GET.get("page"))
    groups = list(shown_page.object_list)
    described = inference.describe_many(viewer, groups)
    shown = {
        "section": "services",
        "services": [told | {"place": place} for told, place in zip(described, _places(groups), strict=True)],
        "shown_page": shown_page,
        "poll_s": settings.PORTAL_POLL_S,
        "has_tenant": bool(tenant_choices(viewer)),
        "many_tenants": viewer.is_operator or len(viewer.roles) > 1,
        "suspended": _suspended(viewer),
    }
    template = "portal/services_body.html" if is_fragment(request) else "portal/services.html"
    return render(request, template, shown)


@page(TENANT)
@require_safe
def detail(request: HttpRequest, group_id: str) -> HttpResponse:
    """One service: state, reasons, tasks, events, how to call it, its live log."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id)
    service, now = inference.describe(viewer, group), utc_now()
    events = workloads.events(viewer).filter(group=group).select_related("task").order_by("-at", "-pk")
    shown = {
        "section": "services",
        "group": group,
        "service": service,
        "explanation": explain(viewer, group, now=now, service=service),
        "log_tasks": [{"public_id": task["id"], "name": task["name"]} for task in service["tasks"]],
        "events": inference.describe_events(viewer, events[:SHOWN_EVENTS]),
        "faults": describe_faults(viewer, faults_of(viewer, group)[:SHOWN_FAULTS]),
        "base_url": _base_url(request),
        "poll_s": settings.PORTAL_POLL_S,
        "may_change": scope.manageable(viewer, TaskGroup.objects.filter(pk=group.pk)).exists(),
        "may_sleep": any(task["status"] == State.RUNNING for task in service["tasks"]),
        "may_wake": any(task["status"] == State.SLEEPING for task in service["tasks"]),
        "may_scale": service["task_type"] == TaskType.INFERENCE,
        "may_start": any(task["status"] in STARTABLE for task in service["tasks"]),
        "may_stop": any(task["status"] in STOPPABLE for task in service["tasks"]),
        "is_fragment": is_fragment(request),
    }
    template = "portal/service_body.html" if is_fragment(request) else "portal/service.html"
    return render(request, template, shown)


@page(TENANT)
@require_http_methods(["GET", "POST"])
def create(request: HttpRequest) -> HttpResponse:
    """The create form; a refusal's sentences stand beside the fields they name. Its second button only tries
    what would happen (SVC-15)."""
    viewer = viewer_of(request.user)
    form = CreateServiceForm(request.POST or None, viewer=viewer)
    shown: dict[str, Any] = {"section": "services", "form": form, "filling": form.filling()}
    shown["has_tenant"] = bool(form.choices)
    if request.method == "POST" and form.is_valid():
        try:
            if "check" in request.POST:
                shown["tried"] = try_service(actor=viewer, body=form.body(), now=utc_now())
            else:
                made = services.create_service(actor=viewer, body=form.body(), now=utc_now())
                told = {"section": "services", "made": made, "base_url": _base_url(request)}
                return render(request, "portal/service_created.html", told)
        except Refusal as refusal:
            form.show(refusal)
    return render(request, "portal/service_create.html", shown)


@page(TENANT)
@require_POST
def stop(request: HttpRequest, group_id: str) -> HttpResponse:
    """Ask all tasks of a service to stop."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    outcome = services.stop_group(actor=viewer, group=group, now=utc_now())
    if outcome.moved:
        text = ngettext("%(n)s task was told to stop.", "%(n)s tasks were told to stop.", outcome.moved)
        messages.success(request, text % {"n": outcome.moved})
    else:
        messages.success(request, _("Nothing to stop: it is stopped, or on its way there."))
    return redirect("portal:service", group_id)


@page(TENANT)
@require_POST
def sleep(request: HttpRequest, group_id: str) -> HttpResponse:
    """Put every replica of a service to sleep that can."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    done = services.sleep_service(actor=viewer, group=group, now=utc_now())
    return _tell(request, group_id, inference.told(viewer, done, "nothing_to_sleep"))


@page(TENANT)
@require_POST
def wake(request: HttpRequest, group_id: str) -> HttpResponse:
    """Wake every replica of a service that sleeps; the page shows how far it is."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    done = services.wake_service(actor=viewer, group=group, now=utc_now())
    return _tell(request, group_id, inference.told(viewer, done, "nothing_to_wake"))


@page(TENANT)
@require_POST
def scale(request: HttpRequest, group_id: str) -> HttpResponse:
    """Give a service so many replicas."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    replicas = read_replicas(request.POST.get("replicas", ""))
    act = services.scale_service(actor=viewer, group=group, replicas=replicas, now=utc_now())
    return _tell(request, group_id, inference.told(viewer, [act], ""))


def _tell(request: HttpRequest, group_id: str, sentences: list[str]) -> HttpResponse:
    for sentence in sentences:
        messages.success(request, sentence)
    return redirect("portal:service", group_id)


@page(TENANT)
@require_POST
def start(request: HttpRequest, group_id: str) -> HttpResponse:
    """Let stopped or failed tasks be placed anew."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    started = services.start_group(actor=viewer, group=group, now=utc_now())
    if started:
        text = ngettext("%(n)s task was told to start.", "%(n)s tasks were told to start.", started)
        messages.success(request, text % {"n": started})
    else:
        messages.success(request, _("Nothing to start: no task of it is stopped or failed."))
    return redirect("portal:service", group_id)


@page(TENANT)
@require_POST
def delete(request: HttpRequest, group_id: str) -> HttpResponse:
    """Delete a service: hidden at once, gone when its nodes confirm."""
    viewer = viewer_of(request.user)
    group = workloads.group_by_id(viewer, group_id, manage=True)
    services.delete_service(actor=viewer, group=group, now=utc_now())
    messages.success(request, _("%(name)s is deleted.") % {"name": group.name})
    return redirect("portal:services")


def _base_url(request: HttpRequest) -> str:
    """What OpenAI's clients take as OPENAI_BASE_URL, at the address that the reader came by."""
    return request.build_absolute_uri("/v1")


def _places(groups: list[TaskGroup]) -> list[workloads.PlaceInLine | None]:
    """How far each service is in the queue, by that of its tasks which is next."""
    waiting = [[task for task in group.tasks.all() if task.state == State.PENDING] for group in groups]
    line = workloads.find_places_in_line(task for tasks in waiting for task in tasks)
    found = [[line[task.pk] for task in tasks if task.pk in line] for tasks in waiting]
    return [min(places, key=lambda one: one.position, default=None) for places in found]


def _suspended(viewer: Viewer) -> list[dict[str, Any]]:
    rows = Tenant.objects.filter(pk__in=viewer.roles, status=TenantStatus.SUSPENDED)
    return [{"name": row.name, "suspended_reason": row.suspended_reason} for row in rows]
