"""The Celery application; its tasks are the ticks of each app's loop.py, its schedule is their table."""

import os
from typing import Any

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.embedded")

app = Celery("heteroflow")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()


@app.on_after_finalize.connect
def add_ticks(sender: Celery, **kwargs: Any) -> None:
    from apps.core.ticks import beat_schedule

    sender.conf.beat_schedule = beat_schedule()
