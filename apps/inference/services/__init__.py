"""Writes across groups, routes and endpoints: create, stop, start again, sleep, wake, scale and delete."""

from apps.inference.services.creating import Created, create_service
from apps.inference.services.leaving import Deleted, delete_service, start_group, stop_group, stop_task
from apps.inference.services.moving import (
    scale_service,
    sleep_service,
    sleep_task,
    wake_service,
    wake_task,
)
from apps.inference.services.waiting import wait_awake

__all__ = [
    "Created",
    "Deleted",
    "create_service",
    "delete_service",
    "scale_service",
    "sleep_service",
    "sleep_task",
    "start_group",
    "stop_group",
    "stop_task",
    "wait_awake",
    "wake_service",
    "wake_task",
]
