"""Addresses of this app below /api/v1."""

from django.urls import URLPattern, path

from apps.inference.api import actions, views
from apps.inference.api.explaining import GroupExplain
from apps.inference.api.faults import GroupFaults

urlpatterns: list[URLPattern] = [
    path("task-groups", views.GroupList.as_view(), name="task-groups"),
    path("task-groups/<slug:group_id>", views.GroupDetail.as_view(), name="task-group"),
    path("task-groups/<slug:group_id>/stop", actions.GroupStop.as_view(), name="task-group-stop"),
    path("task-groups/<slug:group_id>/start", actions.GroupStart.as_view(), name="task-group-start"),
    path("task-groups/<slug:group_id>/explain", GroupExplain.as_view(), name="task-group-explain"),
    path("task-groups/<slug:group_id>/events", views.GroupEvents.as_view(), name="task-group-events"),
    path("task-groups/<slug:group_id>/faults", GroupFaults.as_view(), name="task-group-faults"),
    path("tasks/<slug:task_id>", views.TaskDetail.as_view(), name="task"),
    path("task-groups/<slug:group_id>/scale", actions.GroupScale.as_view(), name="task-group-scale"),
    path("tasks/<slug:task_id>/sleep", actions.TaskSleep.as_view(), name="task-sleep"),
    path("tasks/<slug:task_id>/wake", actions.TaskWake.as_view(), name="task-wake"),
    path("tasks/<slug:task_id>/stop", actions.TaskStop.as_view(), name="task-stop"),
]
