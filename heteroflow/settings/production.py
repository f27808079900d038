"""Several processes and hosts: PostgreSQL, Redis. Refuses to start with what is not safe (OPS-05).

Each value may also come from a file named by NAME_FILE. Redis carries hints, which threads of their own
send, and counts failed joins: a join that it does not answer waits once for REDIS_TIMEOUT_S, the next
ones not at all, and no request fails without it.
"""

import os
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from apps.core.metric_slots import share as share_metrics
from heteroflow.refusals import refusals
from heteroflow.settings.base import *

SECRET_KEY = env.str("SECRET_KEY", default="")
ENCRYPTION_KEYS = env.list("ENCRYPTION_KEYS", default=[])
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])
PUBLIC_URL = env.str("PUBLIC_URL", default="")
for _sentence in refusals(
    secret_key=SECRET_KEY,
    encryption_keys=ENCRYPTION_KEYS,
    debug=env.bool("DEBUG", default=False),
    allowed_hosts=ALLOWED_HOSTS,
    public_url=PUBLIC_URL,
    database_url=env.str("DATABASE_URL", default=""),
    redis_url=env.str("REDIS_URL", default=""),
):
    raise ImproperlyConfigured(_sentence)

DATABASES = {"default": env.db("DATABASE_URL")}
if DATABASES["default"]["ENGINE"] != "django.db.backends.postgresql":
    raise ImproperlyConfigured("DATABASE_URL must begin with postgres://; SQLite is for `make run` only.")
DATABASES["default"] |= {
    "CONN_MAX_AGE": 0,  # the pool keeps connections, not the threads
    "CONN_HEALTH_CHECKS": True,  # after a restart of PostgreSQL the pool holds dead ones
    "OPTIONS": {
        **DATABASES["default"].get("OPTIONS", {}),
        "connect_timeout": env.int("DB_CONNECT_TIMEOUT_S", default=3),
        "options": f"-c statement_timeout={env.int('DB_STATEMENT_TIMEOUT_S', default=30) * 1000}"
        f" -c idle_in_transaction_session_timeout={env.int('DB_IDLE_TRANSACTION_S', default=60) * 1000}",
        # Of one process. All processes together must stay below PostgreSQL's max_connections.
        "pool": {
            "min_size": env.int("DB_POOL_MIN", default=1),
            "max_size": env.int("DB_POOL_MAX", default=10),
            "timeout": env.float("DB_POOL_TIMEOUT_S", default=5.0),
        },
    },
}

REDIS_URL = env.str("REDIS_URL")
REDIS_TIMEOUT_S = env.float("REDIS_TIMEOUT_S", default=0.3)
_short = {"socket_timeout": REDIS_TIMEOUT_S, "socket_connect_timeout": REDIS_TIMEOUT_S}
CELERY_BROKER_URL = REDIS_URL
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # A worker waits for messages one second at a time; a silence of this length is a Redis that hangs.
    "socket_timeout": env.float("BROKER_TIMEOUT_S", default=4.0),
    "socket_connect_timeout": 2.0,
    "socket_keepalive": True,
    # A tick that a killed worker had taken is not worth repeating hours later: the next one is due.
    "visibility_timeout": 60,
}
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # for ever, once a second (heteroflow/celery.py)
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "heteroflow.redis_layer.PatientRedisLayer",
        "CONFIG": {"hosts": [{"address": REDIS_URL, **_short, "retry": AsyncRetry(NoBackoff(), 0)}]},
    }
}
# Counts failed joins over all processes, and lets them through without Redis (apps/agentlink/guessing.py).
# Failed sign-ins are counted in rows.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "OPTIONS": {**_short, "retry": Retry(NoBackoff(), 0)},
    }
}

# A proxy with TLS stands in front and always sets this header itself (deploy/nginx).
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = PUBLIC_URL.startswith("https://")
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=3600)
# `manage.py collectstatic` puts the console's and portal's files there; WhiteNoise serves them.
STATIC_ROOT = env.str("STATIC_ROOT", default=str(DATA_DIR / "static"))
WHITENOISE_USE_FINDERS = env.bool("STATIC_FROM_SOURCE", default=False)
# HOST:PORT where a uvicorn process also takes calls by the gateway's own listener; empty: by uvicorn alone.
GATEWAY_LISTEN = env.str("GATEWAY_LISTEN", default="")
_logging: Any = LOGGING
_logging["filters"]["redis"] = {"()": "heteroflow.redis_layer.OneLineFaults"}
_logging["handlers"]["console"]["filters"].insert(0, "redis")

# Values of `/metrics`, shared by all processes of this host (docs/metrics.md). prometheus_client looks for
# the folder when it is first imported, which is after the settings.
_metrics = Path(os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(DATA_DIR / "metrics")))
try:
    share_metrics(_metrics)
except OSError as _error:
    raise ImproperlyConfigured(
        f"PROMETHEUS_MULTIPROC_DIR is {_metrics}, which can not be used: {_error.strerror or _error}; name "
        "another folder, or let this user write there."
    ) from None
