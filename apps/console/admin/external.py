"""External engines (GW-19): made, changed and removed by routing's services; a key goes in and never out."""

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminPasswordWidget

from apps.console.admin.base import OperatorAdmin
from apps.routing import services
from apps.routing.models import ExternalEngine
from apps.tenants.scope import viewer_of


class ExternalEngineForm(forms.ModelForm):
    """The key goes in and never comes out: it is no field of the row here, which is read without it."""

    key = forms.CharField(
        label=_("API key"),
        required=False,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text=_("Kept encrypted and never shown. Empty keeps the present one."),
    )

    class Meta:
        model = ExternalEngine
        fields = ["name", "url", "engine_model"]
        help_texts = {
            "url": _("With its /v1 or without, such as https://engine.example:8000."),
            "engine_model": _("Empty: asked of its /v1/models."),
        }


@admin.register(ExternalEngine)
class ExternalEngineAdmin(OperatorAdmin):
    """Engines outside of the cluster that routes may lead to."""

    form = ExternalEngineForm
    list_display = ["name", "url", "engine_model", "created_at"]
    search_fields = ["name", "url", "public_id"]

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).defer("api_key")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_operate_permission(request)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        # The routes to it go with it; that is said before.
        deleted, counts, _perms, protected = super().get_deleted_objects(objs, request)
        return deleted, counts, set(), protected

    def save_model(self, request: HttpRequest, obj: ExternalEngine, form: Any, change: Any) -> None:
        given, actor = form.cleaned_data, viewer_of(request.user)
        body = {name: given[name] for name in ("name", "url", "engine_model")}
        if given["key"]:
            body["api_key"] = given["key"]
        if change:
            services.update_external_engine(actor=actor, engine=obj, body=body)
        else:
            obj.pk = services.create_external_engine(actor=actor, body=body).pk

    def delete_model(self, request: HttpRequest, obj: ExternalEngine) -> None:
        services.delete_external_engine(actor=viewer_of(request.user), engine=obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        for row in queryset:
            services.delete_external_engine(actor=viewer_of(request.user), engine=row)
