"""Makes users and databases as tests do, with the names that they use, and leaves them on the servers."""

from __future__ import annotations

import os
import sys

import environ
from django.db.utils import ConnectionHandler

from tests.databases import RUN, named
from tests.waiting import work_for


def leave(url: str) -> object:
    connection = ConnectionHandler({"default": environ.Env.db_url_config(url)})["default"]
    kind = "ROLE" if connection.vendor == "postgresql" else "USER"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE {kind} {named('left')}")
        cursor.execute(f"CREATE DATABASE {named('left')}")
    return connection


def main(seconds: str, status: str) -> None:
    connections = [leave(os.environ[name]) for name in ("DATABASE_URL", "MYSQL_URL")]
    print("made", len(connections), "as", RUN, flush=True)
    work_for(float(seconds))
    sys.exit(int(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
