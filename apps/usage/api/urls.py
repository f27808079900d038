"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.usage.api import views

urlpatterns: list[URLPattern] = [
    path("usage/card-time", views.CardTimes.as_view(), name="card-time"),
    path("usage/card-time.csv", views.CardTimesAsTable.as_view(), name="card-time-table"),
]
