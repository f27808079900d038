"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.inference.api import views
from apps.inference.api.explaining import GroupExplain
from apps.inference.api.faults import GroupFaults

urlpatterns: list[URLPattern] = [
    path("task-groups", views.GroupList.as_view(), name="task-groups"),
    path("task-groups/<slug:group_id>", views.GroupDetail.as_view(), name="task-group"),
    path("task-groups/<slug:group_id>/stop", views.GroupStop.as_view(), name="task-group-stop"),
    path("task-groups/<slug:group_id>/start", views.GroupStart.as_view(), name="task-group-start"),
    path("task-groups/<slug:group_id>/explain", GroupExplain.as_view(), name="task-group-explain"),
    path("task-groups/<slug:group_id>/events", views.GroupEvents.as_view(), name="task-group-events"),
    path("task-groups/<slug:group_id>/faults", GroupFaults.as_view(), name="task-group-faults"),
    path("tasks/<slug:task_id>", views.TaskDetail.as_view(), name="task"),
    path("tasks/<slug:task_id>/stop", views.TaskStop.as_view(), name="task-stop"),
]
