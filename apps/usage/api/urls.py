"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.usage.api import views

urlpatterns: list[URLPattern] = [
    path("usage", views.Uses.as_view(), name="usage"),
    path("usage/records.csv", views.RecordsAsTable.as_view(), name="usage-records-table"),
    path("usage/records.json", views.RecordsAsJson.as_view(), name="usage-records"),
    path("usage/days.csv", views.TotalsAsTable.as_view(), name="usage-days-table"),
    path("usage/days.json", views.TotalsAsJson.as_view(), name="usage-days"),
    path("usage/card-time", views.CardTimes.as_view(), name="card-time"),
    path("usage/card-time.csv", views.CardTimesAsTable.as_view(), name="card-time-table"),
]
