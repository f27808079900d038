"""`manage.py serve`: the embedded profile's server process, started by `manage.py up`."""

import os
import sys
from argparse import ArgumentParser
from typing import Any

from celery._state import get_current_app
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import connection
from django.utils.module_loading import import_string

from apps.ops.server import EmbeddedServer


class Command(BaseCommand):
    help = "Runs web, worker and beat in one process (embedded profile)."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=3333)

    def handle(self, *args: Any, **options: Any) -> None:
        # Loads the composition root, which makes its Celery application the current one.
        application = import_string(settings.ASGI_APPLICATION)
        celery = get_current_app()
        celery.loader.import_default_modules()  # ticks register themselves on import
        server = EmbeddedServer(
            celery,
            application,
            options["host"],
            options["port"],
            drain_s=settings.DRAIN_S,
            ticks_at_once=settings.TICKS_AT_ONCE,
            trusted_proxies=settings.TRUSTED_PROXIES,
        )
        # One connection that stays, made now that Celery has closed all others: else the last one to
        # close, at each idle moment, would write the whole write-ahead log back.
        connection.ensure_connection()
        code = server.run()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: the interpreter would wait for pool threads in the middle of a tick.
        os._exit(code)
