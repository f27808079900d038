"""The REST API's addresses: /api/v1/..., the schema and its offline page."""

from django.urls import include, path
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

urlpatterns = [
    path("v1/", include("apps.tenants.api.urls")),
    path("v1/", include("apps.inference.api.urls")),
    path("v1/", include("apps.gateway.api.urls")),  # before those of routing: see there
    path("v1/", include("apps.routing.api.urls")),
    path("v1/", include("apps.catalog.api.urls")),
    path("v1/", include("apps.fleet.api.urls")),
    path("v1/", include("apps.upkeep.api.urls")),
    path("v1/", include("apps.streams.api.urls")),
    path("v1/", include("apps.usage.api.urls")),
    path("v1/", include("apps.files.api.urls")),
    path("schema.json", SpectacularJSONAPIView.as_view(), name="schema"),
    path("schema/", SpectacularSwaggerView.as_view(url_name="schema"), name="schema-page"),
]
