"""A database that refuses what is sent to it, and would refuse it again: why, and what to do, in a sentence."""

from contextlib import closing

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, connections

from django_singlejob import database
from django_singlejob.codes import Lack
from django_singlejob.exceptions import DatabaseUnusable


def refusal(error: BaseException, before: str = "", *, job_name: str = "") -> DatabaseUnusable | None:
    """What to raise from the error. ``None``: it does not say that the database lacks anything.

    ``before``: what was not done, as ``"'nightly' was not run: "``.
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
    """The same for an error of which it is known that it will come again."""
    message = f"{before}{_database(database.alias())} refuses a statement ({database.words_of(error)})."
    return refusal(error, before, job_name=job_name) or DatabaseUnusable(message, job_name=job_name)


def lack_behind(error: BaseException) -> Lack | None:
    """What the database lacks according to the error's code. ``None``: nothing that its code tells."""
    lack = database.lack(error)
    # The same code stands for any other mistake in a statement.
    if lack is Lack.TABLES and connections[database.alias()].vendor == "sqlite" and not _lacks_columns():
        return None
    return lack


def _lacks_columns() -> bool:
    """Whether one of our tables, or of its columns, is not there. ``False`` as well if that cannot be told."""
    connection = connections[database.alias()]
    try:
        connection.ensure_connection()
        # Not by Django's cursor, which takes nothing after an error in a transaction.
        with connection.wrap_database_errors, closing(connection.create_cursor()) as cursor:
            found = {
                (table, column.name)
                for table in connection.introspection.table_names(cursor)
                for column in connection.introspection.get_table_description(cursor, table)
            }
    except Error:
        return False
    models = apps.get_app_config("django_singlejob").get_models()
    return not found.issuperset((model._meta.db_table, f.column) for model in models for f in model._meta.local_fields)


def _database(alias: str) -> str:
    return f"the database {alias!r} ({place_of(alias)})"


def place_of(alias: str) -> str:
    """Where the database is, for people: ``shop on db.example:5432, as 'web'``."""
    given = connections[alias].settings_dict
    server = ":".join(str(given[key]) for key in ("HOST", "PORT") if given.get(key))
    by = f", as {given['USER']!r}" if given.get("USER") else ""
    return f"{given.get('NAME')}{f' on {server}' if server else ''}{by}"


def unreachable(error: Error, undone: str = "") -> str:
    """What to say of a database that is away. ``undone``: what was not done, as ``", so 'nightly' was not run"``."""
    alias = database.alias()
    return (
        f"The database does not answer{undone}: {database.words_of(error)}. Check that its server is up, and "
        f"DATABASES[{alias!r}] ({place_of(alias)})."
    )


_WORDS = {
    Lack.TABLES: (
        "lacks a table or a column of django_singlejob",
        "Run manage.py migrate{option}.",
    ),
    Lack.DATABASE: ("does not exist, or is not a database", "Create it, or correct DATABASES[{alias!r}]['NAME']."),
    Lack.LOGIN: ("does not let this user in", "Correct USER and PASSWORD in DATABASES[{alias!r}]."),
    Lack.RIGHTS: (
        "does not allow this user to do that",
        "Grant SELECT, INSERT, UPDATE and DELETE on the tables django_singlejob_*.",
    ),
    Lack.WRITES: (
        "is read-only",
        "Have DATABASES[{alias!r}] name a database that can be written to, such as the primary.",
    ),
}
