"""Celery finds the dial-back here."""

from apps.fleet import loop  # noqa: F401 - registers the tick
