"""Addresses of this app."""

from django.urls import URLPattern, path

from apps.ops import health, metrics

urlpatterns: list[URLPattern] = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("readyz/loops", health.loops, name="readyz-loops"),
    path("readyz/<slug:part>", health.part_ready, name="readyz-part"),
    path("metrics", metrics.scrape, name="metrics"),
]
