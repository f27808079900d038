"""Model routes and endpoints: made, changed and removed by routing's services; the route test, and the table
of backends beside the gateways."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import path
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from apps.console.admin.base import OperatorAdmin, ReadOnlyAdmin, tell_refusal
from apps.console.backends import build_backends
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.gateway.destinations import Asked, foretell
from apps.gateway.plane.core.choice import Pins
from apps.routing import services
from apps.routing.models import ExternalEngine, GatewayLoad, InferenceEndpoint, ModelRoute
from apps.tenants.models import ApiKey, Tenant
from apps.tenants.scope import Viewer, viewer_of
from apps.workloads.models import TaskGroup


class NewRouteForm(forms.Form):
    """One more route; its rules are the service's."""

    model_name = forms.CharField(
        label=_("Model name"),
        max_length=200,
        required=False,
        widget=UnfoldAdminTextInputWidget(),
        help_text=_("Empty: the service's own."),
    )
    group = forms.ModelChoiceField(
        TaskGroup.objects.filter(deleted_at__isnull=True),
        label=_("Service"),
        required=False,
        widget=UnfoldAdminSelectWidget(),
    )
    external = forms.ModelChoiceField(
        ExternalEngine.objects.defer("api_key"),
        label=_("External engine"),
        required=False,
        widget=UnfoldAdminSelectWidget(),
    )
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(),
        label=_("Tenant"),
        required=False,
        widget=UnfoldAdminSelectWidget(),
        help_text=_("For an external engine: whose callers it is for."),
    )
    priority = forms.IntegerField(label=_("Priority"), initial=0, widget=UnfoldAdminIntegerFieldWidget())
    weight = forms.IntegerField(label=_("Weight"), initial=100, widget=UnfoldAdminIntegerFieldWidget())
    version = forms.CharField(label=_("Version"), initial="v1", widget=UnfoldAdminTextInputWidget())

    def body(self) -> dict[str, Any]:
        """As the service reads it."""
        given = self.cleaned_data
        ids = {"group_id": given["group"], "external_id": given["external"]}
        return {
            **{name: row.public_id for name, row in ids.items() if row is not None},
            **({"tenant": given["tenant"].slug} if given["tenant"] else {}),
            **({"model_name": given["model_name"]} if given["model_name"] else {}),
            **{name: given[name] for name in ("priority", "weight", "version")},
        }


class RouteTestForm(forms.Form):
    """A call as somebody imagines it."""

    tenant = forms.ModelChoiceField(Tenant.objects.all(), label=_("Tenant"), widget=UnfoldAdminSelectWidget())
    model = forms.CharField(label=_("Model"), max_length=200, widget=UnfoldAdminTextInputWidget())
    version = forms.CharField(
        label=_("Version asked for"), max_length=50, required=False, widget=UnfoldAdminTextInputWidget()
    )
    backend = forms.CharField(
        label=_("Backend asked for"), max_length=40, required=False, widget=UnfoldAdminTextInputWidget()
    )
    session = forms.CharField(
        label=_("Session"), max_length=200, required=False, widget=UnfoldAdminTextInputWidget()
    )
    user = forms.CharField(
        label=_("The body's `user`"), max_length=200, required=False, widget=UnfoldAdminTextInputWidget()
    )
    key = forms.CharField(
        label=_("Key"),
        max_length=40,
        required=False,
        help_text=_("Its id, such as key-...: as if called with it. Empty: a key that may do everything."),
        widget=UnfoldAdminTextInputWidget(),
    )
    address = forms.GenericIPAddressField(
        label=_("Address"),
        required=False,
        help_text=_("Where the call comes from, judged by the key's allowed addresses."),
        widget=UnfoldAdminTextInputWidget(),
    )

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        if given.get("key") and "tenant" in given:
            found = ApiKey.objects.filter(tenant=given["tenant"], public_id=given["key"]).first()
            if found is None:
                self.add_error("key", _("This tenant has no key with this id."))
            given["key"] = found
        return given

    def foretell(self, viewer: Viewer, now: datetime) -> dict[str, Any]:
        given = self.cleaned_data
        pins = Pins(given["version"], given["backend"], given["session"])
        asked = Asked(
            given["tenant"], given["model"], given["key"] or None, pins, given["user"], given["address"]
        )
        return foretell(viewer, asked, now)


@admin.register(ModelRoute)
class ModelRouteAdmin(OperatorAdmin):
    """GW-03: the lowest priority number first, then by weight; weight 0 = reserve."""

    list_display = [
        "model_name",
        "tenant",
        "group",
        "external",
        "priority",
        "weight",
        "version",
        "balancing",
        "sticky",
        "active",
    ]
    list_filter = ["active", "balancing", "tenant"]
    search_fields = ["model_name", "public_id", "group__name", "tenant__slug"]
    list_select_related = ["tenant", "group", "external"]
    changeable = ("priority", "weight", "version", "balancing", "sticky", "active")
    readonly_fields = ["public_id", "tenant", "group", "external", "model_name", "created_at"]
    fields = [*readonly_fields, *changeable]
    actions_list = ["new"]
    actions_detail = ["remove"]

    def get_urls(self) -> list[Any]:
        page = path("test/", self.guarded(self.test), name="routing_modelroute_test")
        return [page, *super().get_urls()]

    def test(self, request: HttpRequest) -> HttpResponse:
        """Which backend a call would get, and why. Nothing is called."""
        form = RouteTestForm(request.GET or None)
        found = form.foretell(viewer_of(request.user), utc_now()) if form.is_valid() else None
        return self.show(
            request, "console/route_test.html", _("Route test"), opts=None, form=form, found=found
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: ModelRoute, form: Any, change: Any) -> None:
        body = {name: getattr(obj, name) for name in self.changeable}
        services.update_route(actor=viewer_of(request.user), route=obj, body=body)

    @action(description=_("New route"), url_path="new", permissions=["operate"], icon="add")
    def new(self, request: HttpRequest) -> HttpResponse:
        form = NewRouteForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                route = services.add_route(actor=viewer_of(request.user), body=form.body())
            except Refusal as refusal:
                tell_refusal(request, refusal, form)
            else:
                return redirect(self.page_of(route))
        return self.show(
            request,
            "console/confirm.html",
            _("New route"),
            form=form,
            question=_("A model name leads to one more service, or to an external engine."),
            button=_("Make"),
            back=self.page_of(),
        )

    @action(description=_("Delete"), url_path="remove", permissions=["operate"])
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        route = self.found(request, object_id)

        def act() -> str:
            services.delete_route(actor=viewer_of(request.user), route=route)
            return _("%(name)s is deleted.") % {"name": route}

        return self.ask_then(
            request,
            title=_("Delete the route %(name)s") % {"name": route},
            question=_("What it leads to goes on; calls of that model go by the routes that are left."),
            button=_("Delete"),
            back=self.page_of(route),
            leads_to=self.page_of(),
            act=act,
        )


@admin.register(InferenceEndpoint)
class InferenceEndpointAdmin(OperatorAdmin):
    """SVC-07, SVC-16: the outward face of a group; of its key the prefix alone is shown."""

    list_display = ["name", "tenant", "group", "port", "shown_key", "created_at"]
    list_filter = ["tenant"]
    search_fields = ["name", "public_id", "group__name", "tenant__slug", "api_key__prefix"]
    list_select_related = ["tenant", "group", "api_key"]
    changeable = ("name", "port", "external_port")
    readonly_fields = ["public_id", "tenant", "group", "shown_key", "created_by", "created_at"]
    fields = [*changeable, *readonly_fields]
    actions_detail = ["rotate", "remove"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    @display(description=_("key"))
    def shown_key(self, row: InferenceEndpoint) -> str:
        return f"{row.api_key.prefix}…" if row.api_key else "-"

    def save_model(self, request: HttpRequest, obj: InferenceEndpoint, form: Any, change: Any) -> None:
        body = {name: getattr(obj, name) for name in self.changeable}
        services.update_endpoint(actor=viewer_of(request.user), endpoint=obj, body=body, now=utc_now())

    @action(description=_("Rotate key"), url_path="rotate", permissions=["operate"])
    def rotate(self, request: HttpRequest, object_id: str) -> HttpResponse:
        endpoint = self.found(request, object_id)
        if request.method == "POST":
            try:
                endpoint, plain = services.update_endpoint(
                    actor=viewer_of(request.user),
                    endpoint=endpoint,
                    body={"rotate_key": True},
                    now=utc_now(),
                )
            except Refusal as refusal:
                tell_refusal(request, refusal)
            else:
                return self.show(
                    request,
                    "console/shown_once.html",
                    _("Key of %(name)s") % {"name": endpoint.name},
                    secret=plain,
                    note=_("Copy it now: it is never shown again. Lost means rotate."),
                    back=self.page_of(endpoint),
                )
        return self.show(
            request,
            "console/confirm.html",
            _("Rotate the key of %(name)s") % {"name": endpoint.name},
            question=_("A new key takes its place; programs that use the old one are refused at once."),
            button=_("Rotate"),
            back=self.page_of(endpoint),
        )

    @action(description=_("Delete"), url_path="remove", permissions=["operate"])
    def remove(self, request: HttpRequest, object_id: str) -> HttpResponse:
        endpoint = self.found(request, object_id)

        def act() -> str:
            services.delete_endpoint(actor=viewer_of(request.user), endpoint=endpoint, now=utc_now())
            return _("%(name)s is deleted.") % {"name": endpoint.name}

        return self.ask_then(
            request,
            title=_("Delete the endpoint %(name)s") % {"name": endpoint.name},
            question=_("Its key ends; the group stays and goes on."),
            button=_("Delete"),
            back=self.page_of(endpoint),
            leads_to=self.page_of(),
            act=act,
        )


@admin.register(GatewayLoad)
class GatewayLoadAdmin(ReadOnlyAdmin):
    """SLEEP-06: what each gateway process last said. A silent one holds up idle sleep."""

    list_display = ["name", "table_version", "in_flight", "held", "said_at", "left"]
    search_fields = ["name"]

    def get_urls(self) -> list[Any]:
        page = path("backends/", self.guarded(self.backends), name="routing_gatewayload_backends")
        return [page, *super().get_urls()]

    def backends(self, request: HttpRequest) -> HttpResponse:
        """The backends as all gateways see them now."""
        found = build_backends(request.GET.get("page"), utc_now())
        return self.show(request, "console/backends.html", _("Backends"), opts=None, backends=found)
