"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.catalog.api import views

urlpatterns: list[URLPattern] = [path("models", views.ModelList.as_view(), name="models")]
