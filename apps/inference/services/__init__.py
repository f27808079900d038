"""Writes across groups, routes and endpoints: create, stop, start again and delete a service."""

from apps.inference.services.creating import Created, create_service
from apps.inference.services.leaving import Deleted, delete_service, start_group, stop_group, stop_task

__all__ = ["Created", "Deleted", "create_service", "delete_service", "start_group", "stop_group", "stop_task"]
