"""Celery finds the scheduling loop here."""

from apps.scheduling import loop  # noqa: F401 - registers the tick
