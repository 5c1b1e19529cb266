"""Which names jobs and locks may have, and how long the texts are that a database keeps."""

import re

from django_singlejob.exceptions import InvalidName

HOSTNAME_LENGTH = 255
COMMAND_LENGTH = 255
PATH_LENGTH = 255
NAME_LENGTH = 200
# The first worker holds the lock django_singlejob.worker.1, and so on. A lock's gate is permanent, so the numbers are
# reused.
WORKER_LOCK = "django_singlejob.worker"
# MySQL compares without case and trailing spaces, SQLite with both: only these names are the same everywhere.
_NAME = re.compile(r"[a-z0-9][a-z0-9_.:-]*", re.ASCII)


def validate_name(name: object) -> str:
    """The name itself. Raises ``InvalidName`` for one that some database would refuse, cut or confuse."""
    if isinstance(name, str) and len(name) <= NAME_LENGTH and _NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{name!r:.250} is no name for a job or a lock: use 1 to {NAME_LENGTH} of the characters a-z 0-9 _ . : - "
        "and begin with a letter or a digit."
    )
