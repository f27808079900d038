"""All addresses but /v1 and the websockets, which asgi.py takes first."""

from django.contrib import admin
from django.urls import include, path

from apps.portal.views.language import choose

urlpatterns = [
    path("admin/", admin.site.urls),
    path("i18n/setlang/", choose, name="set_language"),
    path("api/", include("heteroflow.api")),
    path("agent/v1/", include("apps.agentlink.urls")),
    path("", include("apps.ops.urls")),
    path("", include("apps.portal.urls")),
]
handler404 = "apps.portal.views.handler404"
handler500 = "apps.portal.views.handler500"
