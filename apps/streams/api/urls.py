"""Addresses of this app below /api/v1."""

from django.urls import path

from apps.streams.api.views import TaskLogs

urlpatterns = [path("tasks/<str:task_id>/logs", TaskLogs.as_view(), name="task-logs")]
