"""Settings of the example. A deployment changes them in the environment:
``DATABASE_URL``, ``SECRET_KEY``, ``DEBUG``, ``ALLOWED_HOSTS``, ``SERVER_NAME``.
"""

from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent

env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
# Everybody knows the default, so a deployment has none.
SECRET_KEY = env.str("SECRET_KEY", default="only-for-a-demo-on-your-own-machine" if DEBUG else env.NOTSET)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=[])

# The locks are where the data is. Nothing else is needed: neither Redis nor a broker.
DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'example.sqlite3'}")}

if "." not in DATABASES["default"].get("ENGINE", ""):  # the URL has no scheme, or an unknown one
    raise ImproperlyConfigured("DATABASE_URL must look like postgres://user:password@host:5432/name.")

if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # A writer waits at the BEGIN. In SQLite's default mode, DEFERRED, it may fail later: "database is locked".
        "transaction_mode": "IMMEDIATE",
        # How long it waits, in seconds.
        "timeout": 20,
        # Readers and the writer do not wait for each other.
        "init_command": "PRAGMA journal_mode=WAL",
    }

# Only `manage.py freeze` uses it: its plain lock is a key of this cache.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "freeze_cache"}}

# Inside a container, the hostname is random.
SINGLEJOB = {"HOSTNAME": env.str("SERVER_NAME", default=None)}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_singlejob",
    "shop",
    "race",
    "freeze",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "example_project.urls"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

USE_TZ = True
TIME_ZONE = "UTC"

# The jobs log what they do, and the locks only what is wrong.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
    "loggers": {"shop": {"level": "INFO"}},
}
