from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class CoreConfig(AppConfig):
    name = "apps.core"
    label = "core"

    def ready(self) -> None:
        # Each app's loop.py registers its ticks, so that a process that only sends kicks knows their queues.
        autodiscover_modules("loop")
