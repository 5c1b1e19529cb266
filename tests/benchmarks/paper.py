"""The recipe of Lu 2025 as it stands: INSERT one row whose primary key is the job's name, run, DELETE the row. It has
no lease, no fence and no history. SQLAlchemy's session, a pooled connection, and the driver that Django uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# SQLAlchemy is installed for the benchmarks only.
sqlalchemy: Any = import_module("sqlalchemy")
orm: Any = import_module("sqlalchemy.orm")

DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+mysqldb",
    "sqlite": "sqlite",
}
registry: Any = orm.registry()


@registry.mapped
class PaperLock:
    __tablename__ = "bench_paper_lock"
    name: Any = sqlalchemy.Column(sqlalchemy.String(200), primary_key=True)


class Paper:
    """The recipe on one database."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition(":")
        self.engine = sqlalchemy.create_engine(f"{DRIVERS[scheme]}:{rest}", pool_size=50)
        if self.engine.name == "sqlite":
            sqlalchemy.event.listen(self.engine, "connect", set_up_sqlite)
        registry.metadata.create_all(self.engine)

    def acquire(self, name: str) -> bool:
        """False if somebody has the lock."""
        with orm.Session(self.engine) as session:
            row = PaperLock()
            row.name = name
            session.add(row)
            try:
                session.commit()
            except sqlalchemy.exc.IntegrityError:
                return False
        return True

    def release(self, name: str) -> None:
        with orm.Session(self.engine) as session:
            session.execute(sqlalchemy.delete(PaperLock).where(PaperLock.name == name))
            session.commit()

    def run(self, name: str, body: Callable[[], object] = lambda: None) -> bool:
        """Run it if the lock is free. False if it is not."""
        if not self.acquire(name):
            return False
        try:
            body()
        finally:
            self.release(name)
        return True

    def driver_connection(self) -> Any:
        """The pooled connection itself."""
        with self.engine.connect() as connection:
            return connection.connection.driver_connection


def set_up_sqlite(connection: Any, record: object) -> None:
    """As in the tests' settings for Django."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA busy_timeout=20000")


@contextmanager
def paper_on(url: str) -> Iterator[Paper]:
    paper = Paper(url)
    try:
        yield paper
    finally:
        paper.engine.dispose()
