"""Addresses of this app."""

from django.urls import URLPattern, path

from apps.ops import health, metrics

urlpatterns: list[URLPattern] = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("metrics", metrics.scrape, name="metrics"),
]
