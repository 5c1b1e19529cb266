"""Packages that put a cache between the ORM and the database. Another server's write would be seen too late."""

from typing import Any

from django.apps import apps
from django.conf import settings

from django_singlejob.database import transactions

APP = "django_singlejob"


def cached_by() -> dict[str, str]:
    """How to exclude our tables from each cache that holds them, by the cache's name."""
    found = {
        "django-cachalot": (_is_cached_by_cachalot, f"Add {APP!r} to CACHALOT_UNCACHABLE_APPS."),
        "django-cacheops": (_is_cached_by_cacheops, f"Set CACHEOPS[{APP + '.*'!r}] = None."),
    }
    return {name: remedy for name, (is_cached, remedy) in found.items() if is_cached()}


def _is_cached_by_cachalot() -> bool:
    if not (apps.is_installed("cachalot") and getattr(settings, "CACHALOT_ENABLED", True)):
        return False
    databases = getattr(settings, "CACHALOT_DATABASES", "supported_only")
    if not isinstance(databases, str) and transactions.alias() not in databases:
        return False
    ours = _tables({APP})
    only = _set("CACHALOT_ONLY_CACHABLE_TABLES") | _tables(_set("CACHALOT_ONLY_CACHABLE_APPS"))
    never = _set("CACHALOT_UNCACHABLE_TABLES") | _tables(_set("CACHALOT_UNCACHABLE_APPS"))
    return bool((ours & only if only else ours) - never)


def _is_cached_by_cacheops() -> bool:
    if not (apps.is_installed("cacheops") and getattr(settings, "CACHEOPS_ENABLED", True)):
        return False
    profiles = {str(key).lower(): value for key, value in (getattr(settings, "CACHEOPS", None) or {}).items()}
    defaults = getattr(settings, "CACHEOPS_DEFAULTS", None) or {}
    return any(_has_operations(_profile(profiles, model), defaults) for model in apps.get_app_config(APP).get_models())


def _profile(profiles: dict[str, Any], model: Any) -> Any:
    """That of the narrowest pattern."""
    patterns = (f"{APP}.{model._meta.model_name}", f"{APP}.*", "*.*")
    return next((profiles[pattern] for pattern in patterns if pattern in profiles), None)


def _has_operations(profile: Any, defaults: dict[str, Any]) -> bool:
    return profile is not None and bool({**defaults, **profile}.get("ops"))


def _set(name: str) -> set[str]:
    return {*(getattr(settings, name, None) or ())}


def _tables(labels: set[str]) -> set[str]:
    found = (config for config in apps.get_app_configs() if config.label in labels)
    return {model._meta.db_table for config in found for model in config.get_models()}
