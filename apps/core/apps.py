from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"
    label = "core"

    def ready(self) -> None:
        connection_created.connect(_prepare)
        # Each app's loop.py registers its ticks, so that a process that only sends kicks knows their queues.
        autodiscover_modules("loop")


def _prepare(connection: Any, **more: Any) -> None:
    if connection.vendor == "postgresql":
        from apps.core.moments import read_in_utc

        read_in_utc(connection)
