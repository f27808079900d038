"""WSGI entry: console and REST API in production."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.production")
application = get_wsgi_application()

import heteroflow.celery  # noqa: E402, F401 - hints are sent through the configured Celery application
