"""The Celery application; its tasks are the ticks of each app's loop.py, its schedule is their table."""

import os
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from kombu import Connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.embedded")

RECONNECT_EVERY_S = 1


class SteadyConnection(Connection):
    """Asks a broker that is away once a second. Celery's own pauses grow to half a minute, and loops
    would stand still for as long after the broker is back (OPS-06: 5 s)."""

    def _ensure_connection(
        self,
        errback: Any = None,
        max_retries: int | None = None,
        interval_start: int = RECONNECT_EVERY_S,
        interval_step: int = 0,
        interval_max: int = RECONNECT_EVERY_S,
        *rest: Any,
        **more: Any,
    ) -> Any:
        return super()._ensure_connection(
            errback, max_retries, interval_start, interval_step, interval_max, *rest, **more
        )


class SteadyAMQP(AMQP):
    """Makes every connection of this application a steady one."""

    Connection = SteadyConnection


app = Celery("heteroflow", amqp="heteroflow.celery:SteadyAMQP")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.set_default()


@app.on_after_finalize.connect
def add_ticks(sender: Celery, **kwargs: Any) -> None:
    from apps.core.ticks import beat_schedule

    sender.conf.beat_schedule = beat_schedule()
