"""What a schedule did, in the words of the protocol, for the model in ``tests/model`` to accept.

A trace is a file of JSON lines, in the order of the events. Every line has these keys:

* ``t``: true time in seconds, with six decimals. No process knows it.
* ``actor``: the process, ``"P1"`` for example; ``""`` if it is none (the beginning of a schedule, its end, a clock).
* ``thread``: ``"main"`` for the thread that acquires, works and releases; ``"heartbeat"`` for one that renews; else the
  thread's name. Two threads of one actor have two connections.
* ``event``: one of the words below.

Most events name a lock (``lock``), and a ``token``: tokens are numbered 1, 2, ... in the order in which they are first
seen in a schedule; 0 stands for none. ``rows`` is the number of rows that the statement changed, or 1 and 0 for "yes"
and "no". ``fence`` is the fence in the gate.

A statement's event is written when it has been *carried out* in the database, inside its transaction. It counts only
once that thread's ``commit`` with the outcome ``ok`` or ``lost`` follows. Statements outside of a transaction are
followed by their ``commit`` at once.

The beginning and the end of a schedule:

* ``schedule``: ``seed``, ``scenario``, ``profile``, ``processes``, ``locks`` (the names that are used), ``lease`` and
  ``interval`` (seconds).
* ``over``: all processes have ended, and no fault happens any more. One more actor, the last, acquires what is left.
* ``end``: the schedule has ended.

The statements:

* ``look``: reads the lock's row, ``token`` (0: there is none), ``heartbeats``, ``suspected`` (stale or impossible), and
  ``beats`` (whether its holder sends heartbeats: only such a lock is watched).
* ``look_gate``: reads the gate: ``fence`` and ``token``.
* ``gate``: tries to pass the gate as it was seen (``seen``: that fence), to ``fence`` and ``token``; ``rows``.
* ``insert``: inserts the lock's row with ``token``; ``rows`` 0: there is one already.
* ``take_over``: replaces the row that was seen (``seen``: its token, ``heartbeats``) with ``token``; ``rows``.
* ``renew``: a heartbeat, an adoption or the last statement of a fenced block on one host, of ``token``; ``rows``.
* ``hold``: the first statement of a fenced block, or of a release without a job: the gate with ``token``; ``rows``.
* ``finish``: the first statement of a release with a job: the gate with ``token``; ``rows``.
* ``write``: a body's write inside its fenced block, under ``fence``.
* ``release``: deletes the lock's row with ``token``; ``rows``.
* ``revoke``: a clear takes the gate from its holder: the fence grows by one, and the token is removed.
* ``clear``: deletes the row that was seen (``seen``: its token, ``heartbeats``; ``force``); ``rows``.

Transactions:

* ``begin``: a transaction begins in this thread.
* ``commit``: ``outcome`` is ``"ok"``; ``"lost"``: it was carried out, but its sender got an error; ``"late"``: it is
  carried out now, long after its sender got an error.
* ``rollback``: ``why`` is ``"asked"``, perhaps outside of a transaction, or ``"cut"`` if the connection was lost.

Holders and actors:

* ``trust``: the actor has a lease now (``lock``, ``token``, ``fence``), and trusts itself until ``deadline`` (true
  time). It is written again when a heartbeat moves the deadline.
* ``distrust``: it trusts itself no more; ``why`` is ``"lost"``, ``"expired"`` or ``"over"``.
* ``start``: a body starts under ``lock``, ``token`` and ``fence``.
* ``held``: the answer to the actor was that the lock is held.
* ``died``, ``ended``: the actor was killed, or ended by itself.
* ``fault``: any other fault: ``kind``, ``seconds``.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import IO, TYPE_CHECKING, Any
from unittest.mock import patch

from django_singlejob import Lease
from django_singlejob.locking.grant import Grant
from django_singlejob.models.jobs import JobStatusQuerySet
from django_singlejob.models.locks import JobLockQuerySet
from tests.simulation import world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.simulation.baton import Process, Strand
    from tests.simulation.oracle import Held


class Trace:
    """Writes the events of one schedule."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._tokens: dict[str, int] = {}
        self._trusted: dict[int, Held] = {}

    def event(self, name: str, process: Process | None = None, **facts: Any) -> None:
        """Write an event: of this process, else of none."""
        here = world.current
        assert here is not None
        strand = here.scheduler.current
        thread = _role(strand) if process is not None and strand is not None and strand.process is process else ""
        actor = "" if process is None else process.name
        line = {"t": round(here.now, 6), "actor": actor, "thread": thread, "event": name, **facts}
        print(json.dumps(line), file=self._file)

    def token(self, token: object) -> int:
        """The number of a token; 0 for none."""
        if token is None:
            return 0
        key = str(getattr(token, "hex", token)).replace("-", "")
        return self._tokens.setdefault(key, len(self._tokens) + 1)

    def lease_made(self, held: Held) -> None:
        """A process has a lease, and trusts it."""
        self._trusted[id(held.lease)] = held
        self._trust(held)

    def lease_renewed(self, lease: Lease) -> None:
        """A heartbeat has moved the deadline of a lease."""
        if held := self._trusted.get(id(lease)):
            self._trust(held)

    def _trust(self, held: Held) -> None:
        lease, clock = held.lease, held.process.monotonic
        deadline = lease._state.proven_at + lease.grant.request.lease.total_seconds()
        until = (deadline - clock.ahead) / clock.rate
        facts = {"lock": lease.name, "token": self.token(lease.token), "fence": lease.fence}
        self.event("trust", held.process, **facts, deadline=round(until, 6))

    def look(self) -> None:
        """Write who trusts itself no more."""
        here = world.current
        assert here is not None
        for key, held in list(self._trusted.items()):
            if not held.is_trusted(here.now):
                del self._trusted[key]
                lease = held.lease
                why = "over" if lease._state.is_over else "lost" if lease._state.is_lost else "expired"
                if not held.process.is_dead:
                    self.event("distrust", held.process, lock=lease.name, token=self.token(lease.token), why=why)


def _role(strand: Strand) -> str:
    return "heartbeat" if strand.name.startswith("heartbeat") else strand.name.partition(" ")[0]


# --- the package's own words for what it does


def _name_and_token(trace: Trace, _: Any, args: Any, __: Any, ___: Any) -> dict[str, Any]:
    return {"lock": args[0], "token": trace.token(args[1])}


def _granted(trace: Trace, _: Any, args: Any, __: Any, ___: Any) -> dict[str, Any]:
    return {"lock": args[0], "token": trace.token(args[1]["token"])}


def _taken_over(trace: Trace, _: Any, args: Any, __: Any, ___: Any) -> dict[str, Any]:
    seen, columns = args
    token = trace.token(columns["token"])
    return {"lock": seen.name, "seen": trace.token(seen.token), "heartbeats": seen.heartbeats, "token": token}


def _cleared(trace: Trace, _: Any, args: Any, others: Any, __: Any) -> dict[str, Any]:
    seen = args[0]
    facts = {"lock": seen.name, "seen": trace.token(seen.token), "heartbeats": seen.heartbeats}
    return {**facts, "force": others["force"]}


def _passed(trace: Trace, _: Any, args: Any, __: Any, ___: Any) -> dict[str, Any]:
    seen, token = args
    return {"lock": seen.name, "seen": seen.fence, "fence": seen.next_fence, "token": trace.token(token)}


def _passed_own(trace: Trace, grant: Any, args: Any, *_: Any) -> dict[str, Any]:
    gate = args[0]
    return {"lock": gate.name, "seen": gate.fence, "fence": grant.fence, "token": trace.token(grant.token)}


def _named(_: Trace, __: Any, args: Any, ___: Any, ____: Any) -> dict[str, Any]:
    return {"lock": args[0]}


def _looked(trace: Trace, _: Any, args: Any, __: Any, lock: Any) -> dict[str, Any]:
    if lock is None:
        return {"lock": args[0], "token": 0}
    seen = {"token": trace.token(lock.token), "heartbeats": lock.heartbeats, "suspected": bool(lock.is_suspected)}
    return {"lock": args[0], **seen, "beats": lock.heartbeat_interval is not None}


_EVENTS: list[tuple[Any, str, str, Any]] = [
    (JobLockQuerySet, "look_up", "look", _looked),
    (JobLockQuerySet, "insert", "insert", _granted),
    (JobLockQuerySet, "take_over", "take_over", _taken_over),
    (JobLockQuerySet, "renew", "renew", _name_and_token),
    (JobLockQuerySet, "release", "release", _name_and_token),
    (JobLockQuerySet, "clear", "clear", _cleared),
    (JobStatusQuerySet, "pass_through", "gate", _passed),
    (Grant, "_pass_own_gate", "gate", _passed_own),
    (JobStatusQuerySet, "hold", "hold", _name_and_token),
    (JobStatusQuerySet, "finish", "finish", _name_and_token),
    (JobStatusQuerySet, "revoke", "revoke", _named),
]


def _traced(method: Callable[..., Any], event: str, facts: Any) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Any, *args: Any, **others: Any) -> Any:
        value = method(self, *args, **others)
        here = world.current
        if here is not None and here.trace is not None:
            rows = {"rows": int(value)} if isinstance(value, bool) else {}
            here.trace.event(event, here.here, **facts(here.trace, self, args, others, value), **rows)
        return value

    return call


def _with_gates(look_up: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(look_up)
    def call(self: Any, *args: Any, **others: Any) -> Any:
        found = look_up(self, *args, **others)
        _tell_of(found)
        return found

    return call


def _tell_of(gates: Mapping[str, Any]) -> None:
    here = world.current
    if here is not None and here.trace is not None:
        for name, gate in sorted(gates.items()):
            token = here.trace.token(gate.token)
            here.trace.event("look_gate", here.here, lock=name, fence=gate.fence, token=token)


def _with_deadline(prove: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(prove)
    def call(self: Lease, sent_at: float) -> None:
        before = self._state.proven_at
        prove(self, sent_at)
        here = world.current
        if here is not None and here.trace is not None and self._state.proven_at > before:
            here.trace.lease_renewed(self)

    return call


@contextmanager
def listening() -> Iterator[None]:
    """Have the package's own functions tell the trace what they do."""
    with ExitStack() as stack:
        for owner, name, event, facts in _EVENTS:
            stack.enter_context(patch.object(owner, name, _traced(vars(owner)[name], event, facts)))
        gates = _with_gates(vars(JobStatusQuerySet)["look_up"])
        stack.enter_context(patch.object(JobStatusQuerySet, "look_up", gates))
        stack.enter_context(patch.object(Lease, "proven", _with_deadline(vars(Lease)["proven"])))
        yield
