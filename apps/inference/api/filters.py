"""Filters of the list of services: `?status=running&name=qwen&task_type=inference&tenant=slug`."""

from django_filters import rest_framework as filters

from agent.contract.states import State, TaskType
from apps.workloads.models import TaskGroup, choices


class GroupFilter(filters.FilterSet):
    status = filters.ChoiceFilter(field_name="state", choices=choices(State))
    name = filters.CharFilter(field_name="name", lookup_expr="icontains", max_length=200)
    task_type = filters.ChoiceFilter(choices=choices(TaskType))
    tenant = filters.CharFilter(field_name="tenant__slug", max_length=50)

    class Meta:
        model = TaskGroup
        fields: list[str] = []
