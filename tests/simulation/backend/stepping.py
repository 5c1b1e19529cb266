"""What makes a Django backend one of the simulation: each of its steps goes through ``world.current``.

A backend for another database is a subclass of that database's ``DatabaseWrapper`` with ``Stepping`` before it. It
provides ``open_session``, which returns a ``Session``, and a cursor that is ``Stepped``. See ``sqlite.base``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from tests.simulation import world
from tests.simulation.baton import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.baton import Process

_LOCKS = re.compile(r'(?<!DELETE )(?:FROM|JOIN) ["`]django_singlejob_joblock["`]')


class Session:
    """One connection to the database, as the simulation sees it.

    The driver's connection is behind it, so that it can be taken away while the package still uses it.
    """

    #: The statement under way, if it commits itself.
    request: str | None = None

    def __init__(self, raw: Any, process: Process | None) -> None:
        self.raw = raw
        self.process = process
        if process is not None:
            process.connections.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._open, name)

    @property
    def _open(self) -> Any:
        if self.raw is None:
            raise self.lost("The connection is closed.")
        return self.raw

    def lost(self, message: str) -> Exception:
        """The driver's error for a connection that is lost."""
        raise NotImplementedError

    def cut(self) -> None:
        """Lose the connection. The server rolls its transaction back."""
        if self.raw is not None:
            raw = self.take()
            if world.current is not None and self.process is not None and self.is_inside(raw):
                world.current.oracle.rolled_back(self.process, "cut")
            self.end(raw)

    def let_go(self) -> Callable[[], None]:
        """Lose the connection, but not its session. Returns what commits its transaction later."""
        raw, process = self.take(), self.process

        def finish() -> None:
            self.commit_raw(raw)
            if world.current is not None:
                world.current.oracle.committed(process, "late")
            self.end(raw)

        return finish

    def take(self) -> Any:
        """Take the driver's connection away."""
        raw, self.raw = self.raw, None
        if self.process is not None and self in self.process.connections:
            self.process.connections.remove(self)
        return raw

    def is_inside(self, raw: Any) -> bool:
        """Whether the driver's connection is inside a transaction."""
        raise NotImplementedError

    def commit_raw(self, raw: Any) -> None:
        """COMMIT on the driver's connection."""
        raw.commit()

    def end(self, raw: Any) -> None:
        """Roll back, and close the driver's connection."""
        raise NotImplementedError


class Stepping:
    """The steps of a ``DatabaseWrapper``: put it before the class of the database."""

    connection: Any
    wrap_database_errors: Any

    def open_session(self, params: Any, process: Process | None) -> Session:
        """Connect."""
        raise NotImplementedError

    def is_busy(self, error: BaseException) -> bool:
        """Whether the driver says that another transaction is in the way, and waiting helps."""
        return False

    def has_written(self) -> bool:
        """Whether a transaction of this connection, or a statement outside of any, has committed writes since the last
        call."""
        return False

    def get_new_connection(self, params: Any) -> Session:
        here = world.current
        if here is None:
            return self.open_session(params, None)
        process = here.here
        with here.step("connect", _Nothing(self)):
            here.history.step(process.name, "connect")
            return self.open_session(params, process)

    def _commit(self) -> None:
        here, session = world.current, self.connection
        if here is None or session is None:
            super()._commit()  # type: ignore[misc]
            return
        name, outcome = session.process.name, ""
        try:
            # Django has to see its own errors, also those of the simulation.
            with self.wrap_database_errors, here.step("COMMIT", session) as will_be_lost:
                super()._commit()  # type: ignore[misc]
                self._has_ended()
                here.oracle.committed(session.process, "lost" if will_be_lost else "ok")
                here.history.step(name, "COMMIT")
                outcome = "It was carried out. "
        except Killed:
            raise
        except BaseException as error:
            here.history.step(name, "COMMIT", f"{outcome}{error}")
            raise

    def _rollback(self) -> None:
        here, session = world.current, self.connection
        if here is None or session is None:
            super()._rollback()  # type: ignore[misc]
            return
        with self.wrap_database_errors, here.step("ROLLBACK", session):
            super()._rollback()  # type: ignore[misc]
            self._has_ended()
            here.history.step(session.process.name, "ROLLBACK")
            here.oracle.rolled_back(session.process, "asked")

    def _has_ended(self) -> None:
        assert world.current is not None
        self.has_written()
        world.current.releases += 1


class Stepped:
    """The steps of a cursor: put it before the cursor's class. ``wrapper`` is the ``Stepping`` that made it."""

    wrapper: ClassVar[Any] = None

    def stepped(self, sql: str, execute: Callable[[], Any]) -> Any:
        """Carry out a statement as a step."""
        here, wrapper = world.current, self.wrapper
        session = None if wrapper is None else wrapper.connection
        if here is None or session is None:
            return execute()
        # A grant, or a release, by one statement commits itself.
        commits_itself = sql.startswith("SET LOCAL") and "; WITH " in sql
        process, label = session.process, "COMMIT" if commits_itself else sql.split(maxsplit=1)[0].rstrip(";")
        session.request = sql if commits_itself else None
        try:
            with here.step(label, session) as will_be_lost:
                result = here.carry_out(execute, wrapper.is_busy)
                here.history.statement(process.name, sql, self)
                if (label == "SELECT" or commits_itself) and _LOCKS.search(sql):
                    here.oracle.looked(process)
                if label == "BEGIN":
                    here.oracle.began(process)
                if wrapper.has_written():
                    here.releases += 1
                    here.oracle.committed(process, "lost" if will_be_lost else "ok")
        except Killed:
            raise
        except BaseException as error:
            here.history.step(process.name, label, f"{type(error).__name__}: {error}")
            raise
        finally:
            session.request = None
        return result


class _Nothing:
    """Stands for a connection that is not open yet."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def cut(self) -> None:
        """There is nothing to lose."""

    def let_go(self) -> Callable[[], None]:
        """There is nothing to commit later."""
        return lambda: None

    def lost(self, message: str) -> Exception:
        error: Exception = self._wrapper.Database.OperationalError(message)
        return error
