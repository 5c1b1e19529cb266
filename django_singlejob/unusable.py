"""Messages about a database that refuses a statement and would refuse it again, or that does not answer."""

from contextlib import closing

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, connections

from django_singlejob import database
from django_singlejob.codes import Lack
from django_singlejob.exceptions import DatabaseUnusable


def refusal(error: BaseException, before: str = "", *, job_name: str = "") -> DatabaseUnusable | None:
    """The exception to raise for this error; ``None`` if the error does not mean that the database lacks something.

    ``before`` says what was not done, for example ``"'nightly' was not run: "``.
    """
    if isinstance(error, DatabaseUnusable):
        return error
    lack = lack_behind(error)
    if lack is None:
        return None
    why, remedy = _WORDS[lack]
    alias = database.alias()
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    message = (
        f"{before}{_database(alias)} {why} ({database.words_of(error)}). {remedy.format(alias=alias, option=option)}"
    )
    is_lasting = not database.is_connection_lost(error)
    return DatabaseUnusable(message[0].upper() + message[1:], job_name=job_name, lack=lack, is_lasting=is_lasting)


def refused(error: Error, before: str, *, job_name: str) -> DatabaseUnusable:
    """Like ``refusal``, for an error that would occur again whatever its code is."""
    message = f"{before}{_database(database.alias())} refuses a statement ({database.words_of(error)})."
    return refusal(error, before, job_name=job_name) or DatabaseUnusable(message, job_name=job_name)


def lack_behind(error: BaseException) -> Lack | None:
    """What the database lacks, according to the error's code; ``None`` if the code does not say."""
    lack = database.lack(error)
    # SQLite uses the same code for any other error in a statement.
    if lack is Lack.TABLES and connections[database.alias()].vendor == "sqlite" and not _lacks_columns():
        return None
    return lack


_SQLITE_COLUMNS = """
    SELECT found.name, described.name
    FROM sqlite_master AS found, pragma_table_xinfo(found.name) AS described
    WHERE found.type = 'table'
"""


def _lacks_columns() -> bool:
    """Whether one of our tables or columns is missing. Also ``False`` if that cannot be determined."""
    connection = connections[database.alias()]
    try:
        connection.ensure_connection()
        # Not Django's own cursor, and so not its introspection: after an error in a transaction it refuses all queries.
        with connection.wrap_database_errors, closing(connection.create_cursor()) as cursor:
            found = set(cursor.execute(_SQLITE_COLUMNS))
    except Error:
        return False
    models = apps.get_app_config("django_singlejob").get_models()
    return not found.issuperset((model._meta.db_table, f.column) for model in models for f in model._meta.local_fields)


def _database(alias: str) -> str:
    return f"the database {alias!r} ({place_of(alias)})"


def place_of(alias: str) -> str:
    """Where the database is, in words: ``shop on db.example:5432, as 'web'``."""
    given = connections[alias].settings_dict
    server = ":".join(str(given[key]) for key in ("HOST", "PORT") if given.get(key))
    by = f", as {given['USER']!r}" if given.get("USER") else ""
    return f"{given.get('NAME')}{f' on {server}' if server else ''}{by}"


def unreachable(error: Error, undone: str = "") -> str:
    """The message for a database that does not answer. ``undone`` says what was not done, for example ``", so 'nightly'
    was not run"``."""
    alias = database.alias()
    return (
        f"The database does not answer{undone}: {database.words_of(error)}. Check that the database server is running, "
        f"and check DATABASES[{alias!r}] ({place_of(alias)})."
    )


_WORDS = {
    Lack.TABLES: (
        "lacks a table or a column of django_singlejob",
        "Run manage.py migrate{option}.",
    ),
    Lack.DATABASE: ("does not exist, or is not a database", "Create it, or correct DATABASES[{alias!r}]['NAME']."),
    Lack.LOGIN: ("rejects this user", "Correct USER and PASSWORD in DATABASES[{alias!r}]."),
    Lack.RIGHTS: (
        "does not allow this user to do that",
        "Grant SELECT, INSERT, UPDATE and DELETE on the tables django_singlejob_*.",
    ),
    Lack.WRITES: (
        "is read-only",
        "Point DATABASES[{alias!r}] to a database that accepts writes, such as the primary.",
    ),
}
