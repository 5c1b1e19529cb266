"""A world that can tell whether it has been in the same state before."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tests.simulation.clocks import Clock
from tests.simulation.storage import SQLite
from tests.simulation.world import SERVERS, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.simulation.baton import Process, Strand
    from tests.simulation.faults import Fault

T = TypeVar("T")

#: Statements that end a transaction, or make what others have written visible.
_BOUNDARIES = ("BEGIN", "COMMIT", "ROLLBACK")


class Intent(NamedTuple):
    """The step that a strand is about to take.

    Attributes:
        is_local: whether no other process can notice when it is taken, and nothing that others do can change it.
        is_begun: whether its place for faults is behind it.
    """

    label: str
    is_local: bool
    has_connection: bool
    is_begun: bool = False


class Database(SQLite):
    """A file of SQLite's that notices when its contents change."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._version = -1
        self._contents: dict[str, int] = {}
        self._whole = 0
        self._beginnings: dict[object, list[tuple[str, list[Any]]]] = {}

    def empty(self, tables: Any) -> None:
        self._tables = tuple(tables)
        self._version = -1
        super().empty(self._tables)

    def begin_with(self, prepare: Callable[[], object]) -> None:
        """Insert the rows that this inserts."""
        if prepare not in self._beginnings:
            prepare()
            self._beginnings[prepare] = [self._inserted_into(table) for table in self._tables]
            return
        self._eye.execute("BEGIN IMMEDIATE")
        for insert, rows in self._beginnings[prepare]:
            self._eye.executemany(insert, rows)
        self._eye.execute("COMMIT")

    def _inserted_into(self, table: str) -> tuple[str, list[Any]]:
        """What inserts the rows of a table once more, apart from generated columns."""
        columns = [row[1] for row in self._rows(f"PRAGMA table_info({table})")]
        names, places = ", ".join(columns), ", ".join("?" for _ in columns)
        return f"INSERT INTO {table} ({names}) VALUES ({places})", self._rows(f"SELECT {names} FROM {table}")

    def contents(self) -> int:
        """A number for everything that is committed."""
        self._look()
        return self._whole

    def contents_for(self, sql: str) -> int:
        """A number for what is committed in the tables that a statement names."""
        self._look()
        return hash(tuple(number for table, number in self._contents.items() if f'"{table}"' in sql))

    def _look(self) -> None:
        (version,) = self._eye.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._contents = {table: hash(tuple(self._rows(f"SELECT * FROM {table}"))) for table in self._tables}
            self._whole = hash(tuple(self._contents.items()))

    def outcome(self) -> tuple[Any, ...]:
        """What is left at the end, for people."""
        return (
            *self._rows("SELECT lock, fence FROM test_app_fencedwrite ORDER BY id"),
            *self._rows("SELECT name, fence FROM django_singlejob_jobstatus ORDER BY name"),
            *self._rows("SELECT status, attempt FROM django_singlejob_jobrun ORDER BY status, attempt"),
            *self._rows("SELECT job_name, status FROM django_singlejob_oneoffjob ORDER BY id"),
        )

    def _rows(self, sql: str) -> list[Any]:
        return self._eye.execute(sql).fetchall()


class ObservedWorld(World):
    """A world that keeps a number for what each process has seen: equal numbers mean equal memories."""

    def __init__(self, *, database: Database, **others: Any) -> None:
        super().__init__(**others)
        self.database = database
        self._note_statement = self.history.statement
        self.history.statement = self._statement  # type: ignore[method-assign]
        self.intents: dict[Strand, Intent] = {}
        self._seen: dict[int, int] = {}
        #: What each process has reported, for the outcome.
        self.told: dict[int, tuple[str, ...]] = {}
        #: Which strands wait for the database.
        self._waiting: set[Strand] = set()
        #: Which strands are inside a transaction.
        self._inside: set[Strand] = set()

    def add_process(self) -> Process:
        process = super().add_process()
        process.jitter = 0.5
        if self.profile == SERVERS:
            process.monotonic, process.utc = Clock(1000.0), Clock()
        return process

    # --- what processes see

    def see(self, process: Process, *what: object) -> None:
        """Note what a process has seen."""
        self._seen[process.number] = hash((self._seen.get(process.number, 0), *what))

    def report(self, what: str) -> None:
        """Note what the process that has the baton reports."""
        number = self.here.number
        self.told[number] = (*self.told.get(number, ()), what)
        # The oracle compares the instant of each question with that of each release.
        self.see(self.here, what, tuple(sorted(self.oracle._locks)))

    def monotonic(self) -> float:
        value = super().monotonic()
        self.see(self.here, value)
        return value

    def time_of_day(self) -> float:
        value = super().time_of_day()
        self.see(self.here, value)
        return value

    def _statement(self, actor: str, sql: str, cursor: Any) -> None:
        """A statement was carried out just now."""
        self._note_statement(actor, sql, cursor)
        # Inside a transaction it sees what it saw at the beginning, and its own writes.
        is_inside = self.scheduler.current in self._inside
        # The names of savepoints contain the number of a real thread.
        what = "SAVEPOINT" if "SAVEPOINT" in sql else sql
        self.see(self.here, what, cursor.rowcount, 0 if is_inside else self._visible_to(sql))

    def _visible_to(self, sql: str) -> int:
        return self.database.contents() if sql.startswith("BEGIN") else self.database.contents_for(sql)

    @contextmanager
    def step(self, label: str, connection: Any) -> Iterator[bool]:
        strand, process = self.scheduler.current, self.here
        assert strand is not None
        is_inside = _is_inside(connection)
        (self._inside.add if is_inside else self._inside.discard)(strand)
        is_local = label in ("connect", "sleep") or (is_inside and label not in _BOUNDARIES)
        self.intents[strand] = Intent(label, is_local, connection is not None)
        try:
            with super().step(label, connection) as will_be_lost:
                del self.intents[strand]
                yield will_be_lost
                self.see(process, label)
        except Exception as error:
            self.see(process, label, type(error), str(error))
            raise
        finally:
            self.intents.pop(strand, None)

    def carry_out(self, act: Callable[[], T], is_busy: Callable[[BaseException], bool]) -> T:
        strand = self.scheduler.current
        assert strand is not None

        def observed() -> T:
            self._waiting.discard(strand)
            try:
                return act()
            except sqlite3.Error:
                # If it has to wait, how often it tries makes no difference.
                self._waiting.add(strand)
                raise

        try:
            return super().carry_out(observed, is_busy)
        finally:
            self._waiting.discard(strand)

    def _due(self, process: Process, label: str) -> list[Fault]:
        strand = self.scheduler.current
        assert strand is not None
        self.intents[strand] = self.intents[strand]._replace(is_begun=True)
        return super()._due(process, label)

    # --- where it is

    def go_on(self, strand: Strand) -> None:
        """The strand gets the baton."""
        if strand not in self._waiting:
            self.see(strand.process, strand.process.strands.index(strand))

    def has_siblings(self, strand: Strand) -> bool:
        """Whether another strand of the same process may go on before time passes."""
        return any(
            other is not strand and (other.is_ready(self.now) or other in self._waiting)
            for other in strand.process.strands
            if not other.is_over
        )

    def noticed(self, process: Process) -> tuple[Any, ...]:
        """What the oracle sees of a process directly, apart from the time."""
        held = [each.lease for leases in self.oracle._held.values() for each in leases if each.process is process]
        flags = tuple((lease._state.is_lost, lease._state.is_over, lease._state.is_ending) for lease in held)
        return (process.is_dead, process.is_ended, len(self.oracle.violations), flags)

    def reports(self) -> tuple[Any, ...]:
        """What the processes have reported that ended by themselves."""
        return tuple(self.told.get(process.number) for process in self.scheduler.processes if process.is_ended)

    def fingerprint(self, current: Strand | None) -> int:
        """A number for the present state; ``current``: the strand that has the baton and can go on."""
        return hash(
            (
                self.now,
                self.database.contents(),
                self.database_clock.ahead,
                tuple(self._trace_of(process) for process in self.scheduler.processes),
                tuple(sorted(at for at, _ in self.scheduler.events)),
                tuple(sorted(fault.kind for fault in self.fired)),
                self._of_the_oracle(),
                None if current is None else (current.process.number, current.process.strands.index(current)),
            )
        )

    def _trace_of(self, process: Process) -> tuple[Any, ...]:
        told = self.told.get(process.number, ())
        if process.is_dead:
            # Nothing that it remembers matters, but a COMMIT of its may be under way.
            rest = self._seen.get(process.number) if self.scheduler.events else 0
            return (process.is_ended, told if process.is_ended else (), rest)
        strands = tuple(self._place_of(strand) for strand in process.strands if not strand.is_over)
        stopped, cut_off = max(process.stopped_until, self.now), max(process.cut_off_until, self.now)
        return (self._seen.get(process.number), told, stopped, cut_off, process.utc.ahead, strands)

    def _place_of(self, strand: Strand) -> tuple[Any, ...]:
        is_ready = strand.is_ready(self.now)
        return (
            strand.process.strands.index(strand),
            is_ready,
            0.0 if is_ready else strand.wake_at,
            strand.poll is not None,
            self.intents.get(strand),
        )

    def _of_the_oracle(self) -> tuple[Any, ...]:
        oracle = self.oracle
        starts = tuple(sorted((what, str(key), *numbers) for (what, key), numbers in oracle._starts.items()))
        held = (each for leases in oracle._held.values() for each in leases if not each.process.is_dead)
        leases = sorted(
            (each.process.number, each.lease.fence, each.lease._state.is_lost, each.lease._state.is_over)
            for each in held
        )
        facts = (oracle._fences, oracle._tokens, oracle._locks)
        return (*(tuple(sorted(fact.items(), key=str)) for fact in facts), starts, tuple(leases), oracle._last_write)


def _is_inside(connection: Any) -> bool:
    """Whether a transaction is open."""
    raw = getattr(connection, "raw", None)
    with suppress(sqlite3.ProgrammingError):
        return raw is not None and bool(raw.in_transaction)
    return False
