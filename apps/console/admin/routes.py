"""Model routes and endpoints: made with their group, changed by routing's services."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from apps.console.admin.base import OperatorAdmin, ReadOnlyAdmin, tell_refusal
from apps.core.clock import utc_now
from apps.core.errors import Refusal
from apps.routing import services
from apps.routing.models import GatewayLoad, InferenceEndpoint, ModelRoute
from apps.tenants.scope import viewer_of


@admin.register(ModelRoute)
class ModelRouteAdmin(OperatorAdmin):
    """GW-03: the lowest priority number first, then by weight; weight 0 = reserve."""

    list_display = ["model_name", "tenant", "group", "priority", "weight", "version", "balancing", "active"]
    list_filter = ["active", "balancing", "tenant"]
    search_fields = ["model_name", "public_id", "group__name", "tenant__slug"]
    list_select_related = ["tenant", "group"]
    changeable = ("priority", "weight", "version", "balancing", "active")
    readonly_fields = ["public_id", "tenant", "group", "model_name", "created_at"]
    fields = [*readonly_fields, *changeable]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: ModelRoute, form: Any, change: Any) -> None:
        body = {name: getattr(obj, name) for name in self.changeable}
        services.update_route(actor=viewer_of(request.user), route=obj, body=body)


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
