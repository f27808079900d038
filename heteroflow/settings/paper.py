"""For commands that work on paper alone, such as `manage.py simulate`: without keys, database or broker."""

import secrets

from heteroflow.settings.base import *

SECRET_KEY = secrets.token_urlsafe(32)  # signs nothing that anybody sees
ENCRYPTION_KEYS: list[str] = []
CELERY_BROKER_URL = "memory://here"  # a name, since kombu warns about none
