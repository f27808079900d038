"""Addresses of this app below /agent/v1."""

from django.urls import path

from apps.agentlink import views

urlpatterns = [
    path("join", views.join, name="agent-join"),
    path("heartbeat", views.heartbeat, name="agent-heartbeat"),
    path("claims", views.claims, name="agent-claims"),
    path("reports", views.reports, name="agent-reports"),
    path("logs", views.logs, name="agent-logs"),
    path("file-answers", views.file_answers, name="agent-file-answers"),
    path("files", views.file_pieces, name="agent-files"),
]
