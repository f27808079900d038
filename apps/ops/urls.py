"""Addresses of this app."""

from django.urls import URLPattern, path

from apps.ops import health, metrics

urlpatterns: list[URLPattern] = [
    path("healthz", health.alive, name="healthz"),
    path("readyz", health.ready, name="readyz"),
    path("readyz/loops", health.loops, name="readyz-loops"),
    path("readyz/database", health.part_ready, {"part": "database"}, name="readyz-database"),
    path("readyz/gateway", health.part_ready, {"part": "gateway"}, name="readyz-gateway"),
    path("readyz/drained", health.part_ready, {"part": "drained"}, name="readyz-drained"),
    path("metrics", metrics.scrape, name="metrics"),
]
