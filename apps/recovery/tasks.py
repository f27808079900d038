"""Celery finds the recovery loop here."""

from apps.recovery import loop  # noqa: F401 - registers the tick
