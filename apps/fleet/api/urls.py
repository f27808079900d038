"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.fleet.api import views

urlpatterns: list[URLPattern] = [
    path("nodes", views.NodeList.as_view(), name="nodes"),
    path("nodes/<str:node_id>/release-cards", views.CardRelease.as_view(), name="node-release-cards"),
    path("join-tokens", views.JoinTokens.as_view(), name="join-tokens"),
]
