"""The tests' settings with a pool of connections, which has threads."""

from __future__ import annotations

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES

DATABASES["default"]["OPTIONS"]["pool"] = True
