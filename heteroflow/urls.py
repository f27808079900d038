"""All addresses but /v1 and the websockets, which asgi.py takes first."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),
    path("api/", include("heteroflow.api")),
    path("agent/v1/", include("apps.agentlink.urls")),
    path("", include("apps.ops.urls")),
    path("", include("apps.portal.urls")),
]
handler404 = "apps.portal.views.handler404"
handler500 = "apps.portal.views.handler500"
