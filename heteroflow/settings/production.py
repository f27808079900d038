"""Several processes and hosts: PostgreSQL, Redis. Refuses to start with a default or missing secret."""

from django.core.exceptions import ImproperlyConfigured

from heteroflow.settings.base import *

SECRET_KEY = env.str("SECRET_KEY", default="")
ENCRYPTION_KEYS = env.list("ENCRYPTION_KEYS", default=[])
if len(SECRET_KEY) < 32:
    raise ImproperlyConfigured("SECRET_KEY must be set to at least 32 random characters.")
if not ENCRYPTION_KEYS:
    raise ImproperlyConfigured("ENCRYPTION_KEYS must name at least one Fernet key (newest first).")

DATABASES = {"default": env.db("DATABASE_URL")}
DATABASES["default"].setdefault("OPTIONS", {})["pool"] = True
CELERY_BROKER_URL = env.str("REDIS_URL")
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [CELERY_BROKER_URL]},
    }
}
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": CELERY_BROKER_URL}
}
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=3600)
# `manage.py collectstatic` puts the console's and portal's files there; WhiteNoise serves them.
STATIC_ROOT = env.str("STATIC_ROOT", default=str(DATA_DIR / "static"))
