"""Addresses of this app below /api/v1; before those of routing, whose ids would take the word."""

from django.urls import URLPattern, path

from apps.gateway.api import views

urlpatterns: list[URLPattern] = [
    path("model-routes/test", views.RouteTest.as_view(), name="route-test"),
]
