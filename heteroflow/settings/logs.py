"""How every process logs: masked, with the request's id, one line each."""

from heteroflow.env import env

# `line` for people, `json` for what collects logs: one object a line.
LOG_FORMAT = env.one_of("LOG_FORMAT", "line", "json")
LOG_LEVEL = env.one_of("LOG_LEVEL", "INFO", "DEBUG", "WARNING", "ERROR", "CRITICAL")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {
        "mask": {"()": "apps.core.masking.MaskSecrets"},
        "request": {"()": "apps.core.requests.AddRequestId"},
        "short": {"()": "apps.core.requests.ShortenStrangersFaults"},
    },
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s [%(request_id)s] %(message)s"},
        "json": {"()": "apps.core.json_log.JsonLines"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": "json" if LOG_FORMAT == "json" else "line",
            "filters": ["short", "mask", "request"],
        }
    },
    "root": {"handlers": ["console"], "level": LOG_LEVEL},
    "loggers": {
        "celery": {"level": "WARNING"},
        "axes": {"level": "WARNING"},
        "django.channels.server": {"level": "WARNING"},
        "uvicorn.access": {"level": "WARNING"},
        "uvicorn.error": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},
    },
}
