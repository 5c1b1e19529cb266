"""Which names jobs and locks may have, which texts databases store, and how long those in the tables may be."""

import difflib
import re
from collections.abc import Iterable

from django_singlejob.conf import quoted
from django_singlejob.exceptions import InvalidName

PATH_LENGTH = 255
REASON_LENGTH = 200
NAME_LENGTH = 200
# The first worker holds the lock django_singlejob.worker.1, and so on. A lock's gate is permanent, so the numbers are
# reused.
WORKER_LOCK = "django_singlejob.worker"
# The lock, and the job in the history, of ``singleton_migrate``.
MIGRATE_LOCK = "django_singlejob.migrate"
_RESERVED = "django_singlejob."
# MySQL ignores case and trailing spaces when it compares names, and SQLite does not. With these names it makes no
# difference.
_NAME = re.compile(r"[a-z0-9][a-z0-9_.:-]*", re.ASCII)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether all databases store this text, and compare with it: it has no NUL, and no half of a surrogate pair."""
    return _UNSTORABLE.search(text) is None


def validate_name(name: object) -> str:
    """The name, unchanged. Raises ``InvalidName`` if a database could refuse it, cut it or confuse it with another."""
    if isinstance(name, str) and len(name) <= NAME_LENGTH and _NAME.fullmatch(name):
        return name
    raise InvalidName(
        f"{quoted(name)} is not a valid name for a job or a lock: use 1 to {NAME_LENGTH} of the characters "
        "a-z 0-9 _ . : - and begin with a letter or a digit."
    )


def is_reserved(name: str) -> bool:
    """Whether only this package may give the name to a job or a lock."""
    return name.startswith(_RESERVED)


def validate_own_name(name: object) -> str:
    """The name itself. Raises ``InvalidName`` as well for one that only this package may give to a job or a lock."""
    own = validate_name(name)
    if is_reserved(own):
        raise InvalidName(
            f"{own!r} is reserved: names that begin with {_RESERVED!r} are for the locks and jobs of django-singlejob "
            "itself. Choose another name."
        )
    return own


def is_queue_name(name: object) -> bool:
    """Whether a queue may be called so: an option of a worker must be able to name it, and people must see it."""
    is_text = isinstance(name, str) and 1 <= len(name) <= NAME_LENGTH and name.isprintable() and name == name.strip()
    return is_text and name != "*" and "," not in str(name)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that suggests the names most like this one; empty if none is."""
    close = difflib.get_close_matches(name, known, n=3)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""
