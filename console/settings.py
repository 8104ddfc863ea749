"""Django's settings, all from the environment (`env.SETTINGS`), zero-config by default."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from csp.constants import NONCE, NONE, SELF, UNSAFE_INLINE
from django.core.exceptions import ImproperlyConfigured

from console import embedded, env, oidc

BASE_DIR = Path(__file__).resolve().parent.parent
ENV = env.read_all()

DEBUG = ENV["CONSOLE_DEBUG"]
ALLOWED_HOSTS = ENV["CONSOLE_ALLOWED_HOSTS"]
# Without a key (a bare `manage.py plan`, say) nothing that outlives this process is signed.
SECRET_KEY = ENV["CONSOLE_SECRET_KEY"] or secrets.token_urlsafe(48)
# A command in a second terminal (`manage.py token issue …`) finds the console that runs here; one
# that needs no database (`manage.py plan`) must work without any.
_running = embedded.running_urls()
_NO_DATABASE = "postgresql://console@/console?host=/nonexistent"
DATABASE_URL = ENV["DATABASE_URL"] or _running.get("DATABASE_URL") or _NO_DATABASE
DATABASE_KNOWN = DATABASE_URL != _NO_DATABASE
REDIS_URL = ENV["REDIS_URL"] or _running.get("REDIS_URL") or "redis://127.0.0.1:1/0"


def _database(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    options: dict[str, object] = dict(parse_qsl(parts.query))
    if not parts.path.strip("/"):
        raise ImproperlyConfigured(f"DATABASE_URL={url!r}: names no database")
    host = options.pop("host", "") or unquote(parts.hostname or "")
    if url != _NO_DATABASE:
        # A small pool a process: 300 sockets must not mean 300 connections (S-50).
        options["pool"] = {"min_size": 0, "max_size": 8, "timeout": 10}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.strip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        # After a restart of PostgreSQL a pooled connection is dead; find out before it is used.
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }


DATABASES = {"default": _database(DATABASE_URL)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "rest_framework",
    "drf_spectacular",
    "axes",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "csp",
    "django_htmx",
    "console",
    "telemetry",
    "routing",
    "routing.alerts",
    "routing.jobs",
    "routing.windows",
    "routing.rest",
    "routing.approvals",
    "routing.costs",
    "routing.forecast",
    "routing.refits",
]
MIDDLEWARE = [
    "console.middleware.one_id",
    "django.middleware.security.SecurityMiddleware",
    "console.middleware.no_features",
    "console.compressed.static_files",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "console.compressed.Pages",
    "csp.middleware.CSPMiddleware",
    # Before whatever writes words: pages that refuse speak the reader's language too.
    "console.languages.in_their_language",
    "console.zones.in_their_zone",
    "console.middleware.no_null_characters",
    "console.limits.told",
    "console.deprecated.told",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "console.sessions.bounded",
    "allauth.account.middleware.AccountMiddleware",
    "console.signed_out.LoginKeepsTyped",
    "django.contrib.messages.middleware.MessageMiddleware",
    "console.proposed.LeadsToProposal",
    "console.frozen_page.SaysFrozen",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    # Last, as it is plain: Django then runs all of them in the view's thread. Before an
    # innermost one that can be awaited, each would change threads twice a request.
    "console.middleware.one_look",
]
OIDC = oidc.configured(ENV)
LOCAL_PASSWORDS = ENV["CONSOLE_LOCAL_PASSWORDS"]
if not (LOCAL_PASSWORDS or OIDC):
    raise ImproperlyConfigured(
        "CONSOLE_LOCAL_PASSWORDS=0 needs CONSOLE_OIDC_ISSUER: nobody signs in"
    )
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    *(["django.contrib.auth.backends.ModelBackend"] if LOCAL_PASSWORDS else []),
    *(["console.sso.Backend"] if OIDC else []),
]
SOCIALACCOUNT_ADAPTER = "console.sso.Gatekeeper"
SESSION_S = 3600.0 * ENV["CONSOLE_SESSION_H"]
AUTH_PASSWORD_VALIDATORS = [
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"], "username", "ip_address"]
AXES_HANDLER = "console.lockout.Handler"
AXES_LOCKOUT_TEMPLATE = "locked.html"
AXES_VERBOSE = False
SILENCED_SYSTEM_CHECKS: list[str] = []

ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates", Path(__file__).parent / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "csp.context_processors.nonce",
                "console.context.frame",
            ]
        },
    }
]
STATIC_URL = "/static/"
WHITENOISE_USE_FINDERS = True

USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("ko", "한국어")]
LOCALE_PATHS = [Path(__file__).parent / "locale"]
LANGUAGE_COOKIE_NAME = "language"
LANGUAGE_COOKIE_AGE = 31_536_000
LANGUAGE_COOKIE_HTTPONLY = True
LANGUAGE_COOKIE_SAMESITE = "Lax"

_trusted = ENV["CONSOLE_TRUSTED_ORIGINS"]
CSRF_TRUSTED_ORIGINS = _trusted
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV["CONSOLE_SECURE_COOKIES"]
LANGUAGE_COOKIE_SECURE = ENV["CONSOLE_SECURE_COOKIES"]
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
# Sent over TLS only; a browser that heard it refuses to come without for a year.
SECURE_HSTS_SECONDS = 31_536_000 if ENV["CONSOLE_SECURE_COOKIES"] else 0
X_FRAME_OPTIONS = "DENY"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        # Plotly writes style attributes on SVG text and one style sheet; the sheet is nonced.
        "style-src": [SELF, NONCE],
        "style-src-attr": [UNSAFE_INLINE],
        "img-src": [SELF, "data:", "blob:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
        "base-uri": [NONE],
    }
}

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": REDIS_URL}
}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "console.auth.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["console.auth.RolePermission"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["console.parsers.JsonBody"],
    "DEFAULT_SCHEMA_CLASS": "console.operation.Operation",
    "DEFAULT_THROTTLE_CLASSES": ["console.limits.Limit"],
    "EXCEPTION_HANDLER": "console.api.error_response",
    "STRICT_JSON": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "PrfaaS console",
    "DESCRIPTION": "Control plane of Prefill-as-a-Service.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "PolicyModeEnum": "routing.commands.MODES",
        "PlanModeEnum": "routing.commands.PLAN_MODES",
        "SignalStateEnum": "routing.serializers.SIGNAL_STATES",
        "ReadingStateEnum": "routing.serializers.READING_STATES",
        "AlertSeverityEnum": "routing.core.alerts.rule.SEVERITIES",
        "IncidentKindEnum": "routing.alerts.api.INCIDENT_KINDS",
        "ReceiverKindEnum": "routing.alerts.messages.KINDS",
    },
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "console.schema.complete",
    ],
}

CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # for ever: a broker may be away for a night
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
# Minutes of computing must never stand in front of a tick: they have processes of their own.
CELERY_TASK_ROUTES = {
    name: {"queue": "twin"}
    for name in ("routing.backtest", "costs.work", "costs.value", "forecast.work", "refits.work")
}
CELERY_BEAT_SCHEDULER = "console.beat:Scheduler"
CELERY_BEAT_SCHEDULE = {
    # `expires` below the interval: a burst of late ticks after an outage runs once (S-53).
    "routing.tick": {
        "task": "routing.tick",
        "schedule": ENV["CONSOLE_TICK_S"],
        "options": {"expires": 0.9 * ENV["CONSOLE_TICK_S"]},
    },
    "routing.rebalance": {
        "task": "routing.rebalance",
        "schedule": 1.0,
        "options": {"expires": 0.9},
    },
    "routing.reconcile": {
        "task": "routing.reconcile",
        "schedule": 2.0,
        "options": {"expires": 1.8},
    },
    "routing.backtests_swept": {
        "task": "routing.backtests_swept",
        "schedule": 5.0,
        "options": {"expires": 4.5},
    },
    "alerts.look": {
        "task": "alerts.look",
        "schedule": 10.0,
        "options": {"expires": 9.0},
    },
    "alerts.deliver": {
        "task": "alerts.deliver",
        "schedule": 2.0,
        "options": {"expires": 1.8},
    },
    "jobs.work": {
        "task": "jobs.work",
        "schedule": 5.0,
        "options": {"expires": 4.5},
    },
    "approvals.expire": {
        "task": "approvals.expire",
        "schedule": 10.0,
        "options": {"expires": 9.0},
    },
    "windows.reconcile": {
        "task": "windows.reconcile",
        "schedule": 5.0,
        "options": {"expires": 4.5},
    },
    "costs.work": {
        "task": "costs.work",
        "schedule": 300.0,
        "options": {"expires": 290.0},
    },
    "costs.value": {
        "task": "costs.value",
        "schedule": 30.0,
        "options": {"expires": 29.0},
    },
    "forecast.work": {
        "task": "forecast.work",
        "schedule": 600.0,
        "options": {"expires": 590.0},
    },
    "refits.work": {
        "task": "refits.work",
        "schedule": 30.0,
        "options": {"expires": 29.0},
    },
    "telemetry.partitions": {
        "task": "telemetry.partitions",
        "schedule": 300.0,
        "options": {"expires": 290.0},
    },
    "telemetry.compact": {
        "task": "telemetry.compact",
        "schedule": 30.0,
        "options": {"expires": 29.0},
    },
    "console.kept": {
        "task": "console.kept",
        "schedule": 10.0,
        "options": {"expires": 9.0},
    },
    "rest.prune": {
        "task": "rest.prune",
        "schedule": 3600.0,
        "options": {"expires": 3500.0},
    },
    "routing.prune": {
        "task": "routing.prune",
        "schedule": 3600.0,
        "options": {"expires": 3500.0},
    },
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"()": "console.logs.Line", "format": "%(levelname)s %(name)s: %(message)s"}
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {
        # Each attempt of each pool while the database is away; ingest and the loop say it once.
        "psycopg.pool": {"level": "ERROR"},
        # Its warnings are failed logins and lock-outs; the rest is housekeeping.
        "axes": {"level": "WARNING"},
    },
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
