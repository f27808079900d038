"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.upkeep.api import views

urlpatterns: list[URLPattern] = [
    path("nodes/<str:node_id>", views.NodeDetail.as_view(), name="node"),
    path("nodes/<str:node_id>/work", views.NodeWork.as_view(), name="node-work"),
    path("nodes/<str:node_id>/drain", views.NodeDrain.as_view(), name="node-drain"),
    path("nodes/<str:node_id>/maintenance", views.NodeMaintenance.as_view(), name="node-maintenance"),
    path("nodes/<str:node_id>/force", views.NodeForce.as_view(), name="node-force"),
    path("nodes/<str:node_id>/resume", views.NodeResume.as_view(), name="node-resume"),
]
