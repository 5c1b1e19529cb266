"""A project whose own admin site replaces Django's: its settings, its site and its URLs."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.contrib.admin.apps import AdminConfig

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as USUAL


class Site(AdminSite):
    site_header = "The shop"


class Config(AdminConfig):
    default_site = "tests.admin.site_of_project.Site"


INSTALLED_APPS = ["tests.admin.site_of_project.Config" if "contrib.admin" in app else app for app in USUAL]
