"""Celery entries of this app: importing the loop registers its tick."""

from apps.streams import loop

__all__ = ["loop"]
