"""ASGI entry of a server process; door.py says what goes where."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.embedded")
django_application = get_asgi_application()

# Only now: they need the apps to be loaded.
import heteroflow.celery  # noqa: E402, F401 - hints go through the configured Celery application
from heteroflow.door import Application  # noqa: E402

application = Application(django_application)
