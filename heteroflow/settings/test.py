"""The suite: SQLite, in-memory broker, short periods, fixed keys that guard nothing."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from heteroflow.settings.base import *

DATA_DIR = Path(tempfile.mkdtemp(prefix="heteroflow-test-"))
_made_by = os.getpid()


@atexit.register
def _tidy() -> None:
    if os.getpid() == _made_by:  # not in a fork of the suite
        shutil.rmtree(DATA_DIR, ignore_errors=True)


SECRET_KEY = "only-for-tests-" + "x" * 40
ENCRYPTION_KEYS = ["MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "unused.sqlite3",
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
        # A file, not memory: tests with threads need real locking.
        "TEST": {"NAME": DATA_DIR / "test.sqlite3"},
    }
}
if env.str("TEST_DATABASE_URL", default=""):
    DATABASES = {"default": env.db("TEST_DATABASE_URL")}
CELERY_BROKER_URL = "memory://here"  # a name, since kombu warns about none
CHANNEL_LAYERS = {"default": {"BACKEND": "heteroflow.layers.LoopAwareInMemoryLayer"}}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
MEDIA_ROOT = DATA_DIR / "files"
HETEROFLOW_USAGE_DIR = DATA_DIR / "usage"
HINTS_INLINE = True
AXES_ENABLED = True
WAKE_WAIT_S = 0.0  # a test that waits says so
WHITENOISE_AUTOREFRESH = True  # else each client of a test reads all static files anew
