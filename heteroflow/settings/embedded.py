"""One machine, no services: SQLite, in-memory broker and channel layer (`make run`).

Keys are made once by `manage.py up` and rest in DATA_DIR/secrets.json with mode 0600.
"""

import json

from django.core.exceptions import ImproperlyConfigured

from heteroflow.settings.base import *

_secrets_path = DATA_DIR / "secrets.json"
_stored = json.loads(_secrets_path.read_text()) if _secrets_path.exists() else {}
SECRET_KEY = env.str("SECRET_KEY", default=_stored.get("secret_key", ""))
ENCRYPTION_KEYS = env.list("ENCRYPTION_KEYS", default=_stored.get("encryption_keys", []))
if not SECRET_KEY or not ENCRYPTION_KEYS:
    raise ImproperlyConfigured(
        "The embedded profile has no keys yet: start it by `make run`, or set SECRET_KEY and ENCRYPTION_KEYS."
    )

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "heteroflow.sqlite3",
        # Under ASGI each request has a thread of its own: a kept connection would outlive that thread,
        # with its file descriptors, until the garbage of a long while is collected.
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            "timeout": 20,
            # DEFERRED transactions fail with "locked" when they turn into writers; IMMEDIATE ones wait.
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
CELERY_BROKER_URL = "memory://here"  # a name, since kombu warns about none
CELERY_BROKER_TRANSPORT_OPTIONS = {"polling_interval": 0.05}
CHANNEL_LAYERS = {"default": {"BACKEND": "heteroflow.layers.LoopAwareInMemoryLayer"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
# Engines run on the processors here: busy ones are no reason to place nothing.
LOAD_THRESHOLD_CPU = env.float("LOAD_THRESHOLD_CPU", default=100.0)
METRICS_OPEN_ON_LOOPBACK = env.bool("METRICS_OPEN_ON_LOOPBACK", default=True)
