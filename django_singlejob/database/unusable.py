"""Messages about a database that refuses a statement and would refuse it again, or that does not answer."""

import inspect
import re
from traceback import walk_tb

from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_singlejob.database import errors, transactions
from django_singlejob.exceptions import DatabaseUnreachable, DatabaseUnusable, Lack, SingleJobError


def is_temporary(error: Error) -> bool:
    """Whether the database may answer, or permit it, if the same is tried again later."""
    is_unreachable = isinstance(error, DatabaseUnreachable)
    return is_unreachable or errors.is_connection_lost(error) or errors.is_transient(error)


def refusal(error: BaseException, before: str = "", *, job_name: str = "") -> DatabaseUnusable | None:
    """The exception to raise for this error; ``None`` if the error does not mean that the database lacks something.

    ``before`` says what was not done, for example ``"'nightly' was not run: "``.
    """
    if isinstance(error, DatabaseUnusable):
        return error
    lack = errors.lack(error)
    if lack is None:
        return _not_opened(error, before, job_name)
    why, remedy = _WORDS[lack]
    alias = transactions.alias()
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    has_schema = connections[alias].vendor == "postgresql"
    schema = " and USAGE on their schema" if has_schema else ""
    hidden = " If the tables are there, grant this user USAGE on their schema." if has_schema else ""
    todo = remedy.format(alias=alias, option=option, schema=schema, hidden=hidden)
    message = f"{before}{_database(alias)} {why} ({errors.words_of(error)}). {todo}"
    is_lasting = not errors.is_connection_lost(error)
    return DatabaseUnusable(message[0].upper() + message[1:], job_name=job_name, lack=lack, is_lasting=is_lasting)


def _not_opened(error: BaseException, before: str, job_name: str) -> DatabaseUnusable | None:
    """``None`` if ``DATABASES`` allows a connection to be opened."""
    if not _forbids_connection(error):
        return None
    message = f"{before}{_sentence(errors.words_of(error))} Correct DATABASES[{transactions.alias()!r}]."
    return DatabaseUnusable(message[0].upper() + message[1:], job_name=job_name, is_lasting=True)


def _forbids_connection(error: BaseException) -> bool:
    """Whether this is Django's or the driver's complaint about ``DATABASES``. Such an error may have any type, but it
    is raised again by each attempt to connect."""
    is_servers = isinstance(error, Error) and (errors.is_connection_lost(error) or errors.is_transient(error))
    if is_servers or isinstance(error, SingleJobError) or not _is_of_connect(error):
        return False
    try:
        connections[transactions.alias()].ensure_connection()
    except Exception as again:
        return type(again) is type(error)
    return False


def _is_of_connect(error: BaseException) -> bool:
    """Whether it was raised by an attempt to connect. Outside a test that may use the database, or in an event loop,
    Django and pytest-django refuse before."""
    return any(frame.f_code is _CONNECT for frame, _ in walk_tb(error.__traceback__))


_CONNECT = inspect.unwrap(BaseDatabaseWrapper.connect).__code__


def refused(error: Error, before: str, *, job_name: str) -> DatabaseUnusable:
    """Like ``refusal``, for an error that would occur again whatever its code is."""
    message = f"{before}{_database(transactions.alias())} refuses a statement ({errors.words_of(error)})."
    return refusal(error, before, job_name=job_name) or DatabaseUnusable(message, job_name=job_name)


def _database(alias: str) -> str:
    return f"the database {alias!r} ({place_of(alias)})"


def place_of(alias: str) -> str:
    """Where the database is, in words: ``shop on db.example:5432, as 'web'``."""
    given = connections[alias].settings_dict
    server = ":".join(str(given[key]) for key in ("HOST", "PORT") if given.get(key))
    by = f", as {given['USER']!r}" if given.get("USER") else ""
    return f"{database_name(alias)}{f' on {server}' if server else ''}{by}"


def database_name(alias: str) -> str:
    """The database's name. For some drivers it may be a whole URL, or settings, with a password."""
    name = str(connections[alias].settings_dict.get("NAME"))
    return re.sub(r"(?<=://).*(?=@)|(?<=password=)[^\s&]*", "***", name, flags=re.IGNORECASE)


def unreachable(error: Error, undone: str = "") -> str:
    """The message for a database that does not answer. ``undone`` says what was not done, for example ``", so 'nightly'
    was not run"``."""
    alias = transactions.alias()
    return (
        f"The database does not answer{undone}: {_sentence(errors.words_of(error))} {_remedy(alias)}, and check "
        f"DATABASES[{alias!r}] ({place_of(alias)})."
    )


def _remedy(alias: str) -> str:
    if connections[alias].vendor == "sqlite":
        return "Check that the folder exists and that this user may write to it"
    return "Check that the database server is running"


def _sentence(words: str) -> str:
    """With one full stop, whatever mark the driver puts at the end."""
    return f"{words.rstrip('.?! ')}."


_WORDS = {
    Lack.TABLES: (
        "lacks a table or a column of django_singlejob",
        "Run manage.py migrate{option}.{hidden}",
    ),
    Lack.DATABASE: ("does not exist, or is not a database", "Create it, or correct DATABASES[{alias!r}]['NAME']."),
    Lack.LOGIN: ("rejects this user", "Correct USER and PASSWORD in DATABASES[{alias!r}]."),
    Lack.RIGHTS: (
        "does not allow this user to do that",
        "Grant SELECT, INSERT, UPDATE and DELETE on the tables django_singlejob_*{schema}.",
    ),
    Lack.WRITES: (
        "is read-only",
        "Point DATABASES[{alias!r}] to a database that accepts writes, such as the primary.",
    ),
}
