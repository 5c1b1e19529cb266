"""What the project of tests/life/everywhere.py does when Django's settings are there."""

from __future__ import annotations

import atexit
import logging
import os

import elasticapm
from django.apps import AppConfig
from django.core.cache import cache

logger = logging.getLogger("shop")
#: How many lines each process logs when it is loaded. The file rotates several times.
LINES = 40


class ShopConfig(AppConfig):
    name = "tests.life.shop"

    def ready(self) -> None:
        cache.set("begun-by", os.getpid())
        # Over the whole program, as from a wrapper around it: its queries are spans.
        client = elasticapm.get_client()
        client.begin_transaction("command")
        atexit.register(client.end_transaction, "program")
        for number in range(LINES):
            logger.info("The shop has shelf %d.", number)
