"""Settings that every profile shares. Durations are in seconds and may be set by environment."""

from datetime import timedelta

from django.utils.translation import gettext_lazy as _

from apps.console.navigation import COLORS, SIDEBAR
from heteroflow.env import DATA_DIR, ROOT, env
from heteroflow.settings.logs import LOG_FORMAT as LOG_FORMAT
from heteroflow.settings.logs import LOGGING as LOGGING

BASE_DIR = ROOT
DEBUG = False
ROOT_URLCONF = "heteroflow.urls"
ASGI_APPLICATION = "heteroflow.asgi.application"
WSGI_APPLICATION = "heteroflow.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "tenants.User"
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
# Addresses or networks of proxies whose X-Forwarded-For and -Proto are believed; none by itself.
TRUSTED_PROXIES = env.list("TRUSTED_PROXIES", default=[])

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework_simplejwt",
    "django_filters",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "channels",
    "axes",
    "apps.core.apps.CoreConfig",
    "apps.alerts.apps.AlertsConfig",
    "apps.tenants.apps.TenantsConfig",
    "apps.fleet.apps.FleetConfig",
    "apps.catalog.apps.CatalogConfig",
    "apps.workloads.apps.WorkloadsConfig",
    "apps.routing.apps.RoutingConfig",
    "apps.usage.apps.UsageConfig",
    "apps.streams.apps.StreamsConfig",
    "apps.files.apps.FilesConfig",
    "apps.scheduling.apps.SchedulingConfig",
    "apps.recovery.apps.RecoveryConfig",
    "apps.scaling.apps.ScalingConfig",
    "apps.gateway.apps.GatewayConfig",
    "apps.inference.apps.InferenceConfig",
    "apps.agentlink.apps.AgentlinkConfig",
    "apps.upkeep.apps.UpkeepConfig",
    "apps.console.apps.ConsoleConfig",
    "apps.portal.apps.PortalConfig",
    "apps.ops.apps.OpsConfig",
]

MIDDLEWARE = [
    "apps.core.requests.RequestIdMiddleware",
    "apps.core.request_metrics.RequestMetrics",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "apps.tenants.presence.Presence",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# People (TEN-05): sessions for the web, JWT for the API, guessing slowed by axes for both.
AUTHENTICATION_BACKENDS = [
    "apps.tenants.guessing.AddressLimit",
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
AXES_FAILURE_LIMIT = env.int("SIGN_IN_FAILURE_LIMIT", default=5)
AXES_COOLOFF_TIME = timedelta(seconds=env.int("SIGN_IN_COOLOFF_S", default=300))
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False  # nobody is kept out for ever by a stranger's tries
# From one address, whatever the names: many guess from behind one office address by mistake, too.
SIGN_IN_ADDRESS_FAILURE_LIMIT = env.int("SIGN_IN_ADDRESS_FAILURE_LIMIT", default=50)
AXES_HTTP_RESPONSE_CODE = 429
AXES_ENABLE_ACCESS_FAILURE_LOG = False
AXES_VERBOSE = False
AXES_ENABLE_ADMIN = False  # its pages are not for our theme; the log and the 429 say what is needed
AXES_LOCKOUT_CALLABLE = "apps.tenants.sign_in.lockout_response"
# Sessions and one-time links (TEN-10).
SESSION_SEEN_STEP_S = env.int("SESSION_SEEN_STEP_S", default=60)  # how exact "last seen" is
SESSION_KEEP_S = env.int("SESSION_KEEP_S", default=90 * 86400)  # rows of sessions that nobody used since
INVITATION_TTL_S = env.int("INVITATION_TTL_S", default=7 * 86400)
RESET_TTL_S = env.int("RESET_TTL_S", default=86400)
# E-mail goes out only where a server is named: EMAIL_URL=smtp+tls://user:password@host:587
EMAIL_URL = env.str("EMAIL_URL", default="")
if EMAIL_URL:
    vars().update(env.email_url_config(EMAIL_URL))
EMAIL_TIMEOUT = env.int("EMAIL_TIMEOUT_S", default=5)
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default="heteroflow@localhost")
LOGIN_URL = "portal:sign_in"
LOGIN_REDIRECT_URL = "portal:services"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
DATA_UPLOAD_MAX_MEMORY_SIZE = env.int("API_BODY_MAX_BYTES", default=2 * 1024 * 1024)

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.tenants.api.authentication.TokenAuthentication",
        "apps.core.requests.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["apps.tenants.api.permissions.ByScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.core.requests.StrictJSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PAGINATION_CLASS": "apps.core.pages.Pages",
    "PAGE_SIZE": 50,
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "EXCEPTION_HANDLER": "apps.core.problems.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SIMPLE_JWT = {
    "ACCESS_TOKEN_LIFETIME": timedelta(seconds=env.int("ACCESS_TOKEN_S", default=900)),
    "REFRESH_TOKEN_LIFETIME": timedelta(seconds=env.int("REFRESH_TOKEN_S", default=7 * 86400)),
    "USER_ID_FIELD": "public_id",
    "USER_ID_CLAIM": "sub",
    "CHECK_REVOKE_TOKEN": True,  # a new password ends the tokens of before, as it ends the sessions
    "LEEWAY": timedelta(seconds=env.int("TOKEN_LEEWAY_S", default=60)),
}
SPECTACULAR_SETTINGS = {
    "TITLE": "HeteroFlow",
    "DESCRIPTION": "Services, tasks, keys, routes and nodes. Inference itself is under /v1 (OpenAI's shape).",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    # Several shapes have a field `status`; these are the names of its kinds.
    "ENUM_NAME_OVERRIDES": {
        "StateEnum": "apps.inference.api.shapes.STATES",
        "TenantStatusEnum": "apps.tenants.models.TenantStatus",
    },
}

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]
LOCALE_PATHS = [ROOT / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
STATICFILES_DIRS = [ROOT / "static"]
WHITENOISE_USE_FINDERS = True
MEDIA_ROOT = DATA_DIR / "files"

UNFOLD = {
    "SITE_TITLE": "HeteroFlow",
    "SITE_HEADER": "HeteroFlow",
    "SITE_SUBHEADER": _("operator console"),
    "SITE_URL": "/",
    "LOGIN": {"form": "apps.console.sign_in.SignInForm"},
    "SHOW_HISTORY": False,
    "SHOW_LANGUAGES": True,
    "SITE_ICON": "/static/img/mark.svg",
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/img/mark.svg"}],
    "DASHBOARD_CALLBACK": "apps.console.dashboard.fill",
    "SIDEBAR": SIDEBAR,
    "COLORS": COLORS,
}

# Portal.
PORTAL_POLL_S = env.int("PORTAL_POLL_S", default=3)  # how often an open page asks for its live part
PLAYGROUND_KEY_TTL_S = env.int("PLAYGROUND_KEY_TTL_S", default=4 * 3600)  # of keys made by the playground
KEY_OVERLAP_MAX_S = env.int("KEY_OVERLAP_MAX_S", default=7 * 86400)  # for how long a rotated key may work on

# Loops (SCHED-01, RECOV-06). Each period is a setting; tests shorten them.
SCHEDULING_PERIOD_S = env.float("SCHEDULING_PERIOD_S", default=1.0)
RECOVERY_PERIOD_S = env.float("RECOVERY_PERIOD_S", default=5.0)
DRAIN_PERIOD_S = env.float("DRAIN_PERIOD_S", default=2.0)
# Idle services and drains. A gateway that said nothing of its calls for LOAD_FRESH_S is silent: no service is
# taken for idle then. After LOAD_FORGET_S it is held to be dead. IDLE_MINUTE_S is what a minute of
# idle_timeout_minutes lasts, for tests.
IDLE_PERIOD_S = env.float("IDLE_PERIOD_S", default=2.0)
IDLE_MINUTE_S = env.float("IDLE_MINUTE_S", default=60.0)
LOAD_FRESH_S = env.float("LOAD_FRESH_S", default=30.0)
LOAD_FORGET_S = env.float("LOAD_FORGET_S", default=600.0)
# Emptying nodes: replacements that start at once in the whole fleet, how long running calls have to end once
# the replacement serves, and when one whose rebuilds are spent is tried anew.
DRAIN_AT_ONCE = env.int("DRAIN_AT_ONCE", default=4)
DRAIN_DEADLINE_S = env.float("DRAIN_DEADLINE_S", default=60.0)
DRAIN_RETRY_S = env.float("DRAIN_RETRY_S", default=300.0)
TICK_LEASE_TTL_S = env.float("TICK_LEASE_TTL_S", default=4.0)
# A loop is late when its last run ended so many periods and so many seconds ago (docs/loops.md); the seconds
# are for a run itself, and for the lease of a holder that died.
LOOP_LATE_PERIODS = env.float("LOOP_LATE_PERIODS", default=3.0)
LOOP_LATE_SLACK_S = env.float("LOOP_LATE_SLACK_S", default=15.0)
COMMIT_SLICE = env.int("COMMIT_SLICE", default=2000)  # more at once cost less each, and lock for longer
# What one run of the scheduler may take before the rest is left to the next one.
SCHEDULING_BUDGET_S = env.float("SCHEDULING_BUDGET_S", default=8.0)
# Weights of the score plugins (apps/scheduling/policy/scores) by name; absent = 1.
SCHEDULING_WEIGHTS = {
    "spread": env.float("SCHEDULING_WEIGHT_SPREAD", default=2.0),
    "binpack": env.float("SCHEDULING_WEIGHT_BINPACK", default=1.0),
    "load": env.float("SCHEDULING_WEIGHT_LOAD", default=1.0),
    "model": env.float("SCHEDULING_WEIGHT_MODEL", default=2.0),
    "engine": env.float("SCHEDULING_WEIGHT_ENGINE", default=1.0),
    "topology": env.float("SCHEDULING_WEIGHT_TOPOLOGY", default=1.0),
    "rdma": env.float("SCHEDULING_WEIGHT_RDMA", default=1.0),
}
# How long a hint may hold its own thread, and how long it is worth running after it was sent.
HINT_TIMEOUT_S = env.float("HINT_TIMEOUT_S", default=0.3)
HINT_EXPIRES_S = env.float("HINT_EXPIRES_S", default=5.0)

# Nodes and tasks.
NODE_SILENT_S = env.float("NODE_SILENT_S", default=30.0)
# On top of a service's own start period; beyond the agent's load_cap_s + port_wait_s (3719 s).
START_DEADLINE_S = env.float("START_DEADLINE_S", default=3900.0)
CLAIM_DEADLINE_S = env.float("CLAIM_DEADLINE_S", default=60.0)
STOP_DEADLINE_S = env.float("STOP_DEADLINE_S", default=120.0)
STOP_GRACE_S = env.float("STOP_GRACE_S", default=10.0)
# Sleep: how long running calls may go on, and for how long there must be none before the engine is put down:
# more than a gateway needs to see that the replica left the routes.
SLEEP_DRAIN_S = env.float("SLEEP_DRAIN_S", default=60.0)
SLEEP_SETTLE_S = env.float("SLEEP_SETTLE_S", default=3.0)
# A wake over the API waits so long for it to be ready, where the caller names no other time; of a process at
# most so many callers wait, the others are answered at once.
WAKE_WAIT_S = env.float("WAKE_WAIT_S", default=120.0)
WAKE_WAITERS = env.int("WAKE_WAITERS", default=2)
WAKE_POLL_S = env.float("WAKE_POLL_S", default=0.5)
# Loans of sleepers' cards end after so long where the lender's tenant names no minutes. Room that work of
# lower priority left is kept for so long; within the pause nobody gives way twice, nor twice for one task.
PREEMPTION_HOLD_S = env.float("PREEMPTION_HOLD_S", default=120.0)
PREEMPTION_PAUSE_S = env.float("PREEMPTION_PAUSE_S", default=600.0)
LOAN_MAX_S = env.float("LOAN_MAX_S", default=3600.0)
# A card that its node no longer reports is lost after so long. Off lost nodes and cards no more tasks than so
# many are taken within a minute: what is lost in crowds may be a fault of ours.
CARD_LOST_S = env.float("CARD_LOST_S", default=10.0)
EVICTIONS_PER_MINUTE = env.int("EVICTIONS_PER_MINUTE", default=20)
# Of training and containers: how long one may run that names no timeout, how often a failed one is started
# again (LIFE-03, LIFE-07).
RUN_TIMEOUT_S = env.float("RUN_TIMEOUT_S", default=86400.0)
RUN_RETRIES = env.int("RUN_RETRIES", default=0)
REBUILD_MAX = env.int("REBUILD_MAX", default=5)
REBUILD_STABLE_S = env.float("REBUILD_STABLE_S", default=60.0)
REBUILD_DELAY_S = env.float("REBUILD_DELAY_S", default=2.0)
# A claimed attempt that a node's list lacks for longer than this is gone.
RECONCILE_GRACE_S = env.float("RECONCILE_GRACE_S", default=15.0)
JOIN_TOKEN_TTL_S = env.int("JOIN_TOKEN_TTL_S", default=3600)
JOIN_TOKEN_TTL_MAX_S = env.int("JOIN_TOKEN_TTL_MAX_S", default=30 * 86400)
CLOCK_SKEW_WARN_S = env.float("CLOCK_SKEW_WARN_S", default=60.0)
NODE_FOLLOW_S = env.float("NODE_FOLLOW_S", default=10.0)  # a node's other address or clock, once in so long
# How busy a node may be, in percent, and still take work (SCHED-03); how many inference containers a node
# takes that names no number, for each of its cards and at least (SCHED-06).
LOAD_THRESHOLD_CPU = env.float("LOAD_THRESHOLD_CPU", default=90.0)
LOAD_THRESHOLD_MEMORY = env.float("LOAD_THRESHOLD_MEMORY", default=90.0)
LOAD_THRESHOLD_DISK = env.float("LOAD_THRESHOLD_DISK", default=90.0)
INFERENCE_CAP_PER_GPU = env.int("INFERENCE_CAP_PER_GPU", default=8)
# Whether tenants are served by what they hold, within one priority (SCHED-17).
FAIR_SHARE = env.bool("FAIR_SHARE", default=False)
VRAM_RESERVE_MB = env.int("VRAM_RESERVE_MB", default=500)
VRAM_RESERVE_RATIO = env.float("VRAM_RESERVE_RATIO", default=0.10)
# What a model is taken to need: its size times the factor, and so many MB on each card (SVC-09).
MODEL_MEMORY_FACTOR = env.float("MODEL_MEMORY_FACTOR", default=1.2)
MODEL_OVERHEAD_MB = env.int("MODEL_OVERHEAD_MB", default=2048)
# The dial-back of nodes' doors (AGENT-16): one dial must end well within the lease of a tick.
DOOR_SKEW_STEP_S = env.float("DOOR_SKEW_STEP_S", default=20.0)  # a clock that moved less is not followed
DOOR_CHECK_PERIOD_S = env.float("DOOR_CHECK_PERIOD_S", default=60.0)
DOOR_DIAL_TIMEOUT_S = env.float("DOOR_DIAL_TIMEOUT_S", default=3.0)
DOOR_DIALS_AT_ONCE = env.int("DOOR_DIALS_AT_ONCE", default=64)
DOOR_CHECK_BUDGET_S = env.float("DOOR_CHECK_BUDGET_S", default=6.0)
PUBLIC_URL = env.str("PUBLIC_URL", default="http://127.0.0.1:3333")
# SHA-256 of the certificate at PUBLIC_URL where no authority vouches for it: stands in the join line.
SERVER_CERTIFICATE_SHA256 = env.str("SERVER_CERTIFICATE_SHA256", default="")

# Agents' requests and logs.
AGENT_BODY_MAX_BYTES = env.int("AGENT_BODY_MAX_BYTES", default=4 * 1024 * 1024)
JOIN_FAILURE_LIMIT = env.int("JOIN_FAILURE_LIMIT", default=10)  # per address, within the window
JOIN_FAILURE_WINDOW_S = env.int("JOIN_FAILURE_WINDOW_S", default=300)
CACHE_RETRY_S = env.float("CACHE_RETRY_S", default=5.0)  # no request asks a cache that was away for so long
LOG_READ_MAX_BYTES = env.int("LOG_READ_MAX_BYTES", default=1024 * 1024)  # one answer of the REST API
LOG_MESSAGE_MAX_BYTES = env.int("LOG_MESSAGE_MAX_BYTES", default=64 * 1024)  # one websocket message
LOG_POLL_S = env.float("LOG_POLL_S", default=3.0)  # a live log looks by itself, should a hint be lost
LOG_KEEP_BYTES = env.int("LOG_KEEP_BYTES", default=64 * 1024 * 1024)  # of one attempt; the oldest go
LOG_STORE_BYTES = env.int("LOG_STORE_BYTES", default=20 * 1024**3)  # of all; the oldest go
LOG_TIDY_PERIOD_S = env.float("LOG_TIDY_PERIOD_S", default=600.0)

# Files of tasks that people ask for (AGENT-12): the bytes of one piece, what a tenant's may take and how many
# of its requests may wait, when a node's silence ends one, and when a request goes with what came for it.
FILE_CHUNK_BYTES = env.int("FILE_CHUNK_BYTES", default=64 * 1024 * 1024)
FILE_TENANT_BYTES = env.int("FILE_TENANT_BYTES", default=20 * 1024**3)
FILE_REQUESTS_OPEN = env.int("FILE_REQUESTS_OPEN", default=32)
FILE_WAIT_S = env.float("FILE_WAIT_S", default=600.0)
FILE_KEEP_S = env.float("FILE_KEEP_S", default=86400.0)
FILE_TIDY_PERIOD_S = env.float("FILE_TIDY_PERIOD_S", default=60.0)

# The embedded profile's processes (`manage.py up`).
TICKS_AT_ONCE = env.int("TICKS_AT_ONCE", default=4)
DRAIN_S = env.float("DRAIN_S", default=5.0)  # how long calls may go on after SIGTERM; then their engines end
AGENT_STOP_S = env.float("AGENT_STOP_S", default=6.0)  # its own limit for ending engines is 4 s
DEMO_WAIT_S = env.float("DEMO_WAIT_S", default=300.0)

# Gateway.
HETEROFLOW_USAGE_DIR = DATA_DIR / "usage"
# How often a host's gateways say what waits in their usage files, and when one that fell silent is forgotten.
USAGE_REPORT_PERIOD_S = env.float("USAGE_REPORT_PERIOD_S", default=10.0)
# How often records are added up, how many at most in one run, and for how many days records and sums by hour
# are kept after that (0 = for ever); sums by day stay.
USAGE_TOTALS_PERIOD_S = env.float("USAGE_TOTALS_PERIOD_S", default=10.0)
USAGE_TOTALS_RECORDS = env.int("USAGE_TOTALS_RECORDS", default=10_000)
USAGE_RECORDS_KEEP_DAYS = env.int("USAGE_RECORDS_KEEP_DAYS", default=90)
USAGE_HOURS_KEEP_DAYS = env.int("USAGE_HOURS_KEEP_DAYS", default=400)
CARD_TIME_PERIOD_S = env.float("CARD_TIME_PERIOD_S", default=60.0)
USAGE_HOST_KEEP_S = env.float("USAGE_HOST_KEEP_S", default=86400.0)

# Alerts (OPS-09): how often conditions are looked at, and from when on they are worth an alert.
ALERT_WATCH_PERIOD_S = env.float("ALERT_WATCH_PERIOD_S", default=10.0)
ALERT_PENDING_S = env.float("ALERT_PENDING_S", default=600.0)
ALERT_LOOP_FAILURES = env.int("ALERT_LOOP_FAILURES", default=3)
ALERT_ROUTE_UNSERVED_S = env.float("ALERT_ROUTE_UNSERVED_S", default=60.0)
ALERT_USAGE_BEHIND_S = env.float("ALERT_USAGE_BEHIND_S", default=120.0)
ALERT_QUIET_S = env.float("ALERT_QUIET_S", default=3600.0)  # what happened once is over after so long
ALERT_KEEP_S = env.float("ALERT_KEEP_S", default=30 * 86400.0)
# Webhooks: retried with doubling pauses, given up after a day; see docs/alerts.md. WEBHOOK_TIMEOUT_S is for a
# whole sending: name, connection and answer together.
ALERT_DELIVERY_PERIOD_S = env.float("ALERT_DELIVERY_PERIOD_S", default=5.0)
WEBHOOK_TIMEOUT_S = env.float("WEBHOOK_TIMEOUT_S", default=3.0)
WEBHOOK_BUDGET_S = env.float("WEBHOOK_BUDGET_S", default=5.0)
WEBHOOK_RETRY_S = env.float("WEBHOOK_RETRY_S", default=5.0)
WEBHOOK_RETRY_MAX_S = env.float("WEBHOOK_RETRY_MAX_S", default=300.0)
WEBHOOK_GIVE_UP_S = env.float("WEBHOOK_GIVE_UP_S", default=86400.0)
# Whether webhooks may go to addresses of the inner network and of this machine.
WEBHOOK_ALLOW_PRIVATE = env.bool("WEBHOOK_ALLOW_PRIVATE", default=False)

# External engines (GW-19): whether routes may lead to addresses of the inner network, and over plain http.
EXTERNAL_ENGINES_ALLOW_PRIVATE = env.bool("EXTERNAL_ENGINES_ALLOW_PRIVATE", default=False)
EXTERNAL_ENGINES_ALLOW_HTTP = env.bool("EXTERNAL_ENGINES_ALLOW_HTTP", default=False)

# `/metrics`: for the bearer of the token; without one, in the embedded profile, for this machine itself.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
METRICS_OPEN_ON_LOOPBACK = env.bool("METRICS_OPEN_ON_LOOPBACK", default=False)

# Celery: a task is a hint, rows are the truth.
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_TASK_DEFAULT_QUEUE = "work"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TIMEZONE = "UTC"
HINTS_INLINE = False
