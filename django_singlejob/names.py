"""Which names jobs and locks may have, and how long the texts in the tables may be."""

import re

from django_singlejob.exceptions import InvalidName

HOSTNAME_LENGTH = 255
COMMAND_LENGTH = 255
PATH_LENGTH = 255
USER_LENGTH = 255
NAME_LENGTH = 200
# MySQL ignores case and trailing spaces when it compares names, and SQLite does not. With these names it makes no
# difference.
_NAME = re.compile(r"[a-z0-9][a-z0-9_.:-]*", re.ASCII)


def validate_name(name: object) -> str:
    """The name, unchanged. Raises ``InvalidName`` if a database could refuse it, cut it or confuse it with another."""
    if isinstance(name, str) and len(name) <= NAME_LENGTH and _NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{name!r:.250} is not a valid name for a job or a lock: use 1 to {NAME_LENGTH} of the characters "
        "a-z 0-9 _ . : - and begin with a letter or a digit."
    )
