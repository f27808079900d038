"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.routing.api import external, views

urlpatterns: list[URLPattern] = [
    path("model-routes", views.RouteList.as_view(), name="model-routes"),
    path("model-routes/<slug:route_id>", views.RouteDetail.as_view(), name="model-route"),
    path("external-engines", external.ExternalEngineList.as_view(), name="external-engines"),
    path(
        "external-engines/<slug:engine_id>", external.ExternalEngineDetail.as_view(), name="external-engine"
    ),
    path("gateway/endpoints", views.EndpointList.as_view(), name="endpoints"),
    path("gateway/endpoints/<slug:endpoint_id>", views.EndpointDetail.as_view(), name="endpoint"),
]
