"""Settings of a site whose admin has the theme that SINGLEJOB_TEST_THEME names."""

from __future__ import annotations

import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS, MIDDLEWARE

#: The app that each theme wants before Django's admin.
APPS = {"django": [], "unfold": ["unfold"], "jazzmin": ["jazzmin"], "grappelli": ["grappelli"]}

INSTALLED_APPS = [*APPS[os.environ["SINGLEJOB_TEST_THEME"]], *INSTALLED_APPS]
ROOT_URLCONF = "tests.browser.themed_urls"
# The themes have scripts and styles of their own in their pages, which a strict policy forbids.
MIDDLEWARE = [name for name in MIDDLEWARE if "olicy" not in name and "csp" not in name]
# Only to serve the files of the theme.
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1"]

# Otherwise it would load them from elsewhere.
JAZZMIN_SETTINGS: dict[str, Any] = {"use_google_fonts_cdn": False}
JAZZMIN_UI_TWEAKS: dict[str, Any] = {"default_theme_mode": "auto"}
