"""An order: what a supervisor has an executor run, and under which lease. It travels over the executor's socket."""

import os
import pickle
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connections

from django_singlejob.database import transactions
from django_singlejob.locking.endings import Ending
from django_singlejob.locking.grant import Grant
from django_singlejob.locking.lease import Lease
from django_singlejob.running.shared import SharedMemory, unnamed_file

# How many descriptors come with an order, at most.
_MOST_DESCRIPTORS = 16


class Work(NamedTuple):
    """What an executor does for an order.

    Attributes:
        body: what to run; it may be an ``async def``.
        end: is called with the body's value and failure, and says how the run has ended.
        log: is called with the failure that ``end`` has reported, if there is one.
        is_interruptible: whether signals raise in the body; if not, it asks itself whether one has come.
    """

    body: Callable[[], Any]
    end: Callable[[Any, BaseException | None], Ending]
    log: Callable[[BaseException], object]
    is_interruptible: bool = True


class Order(NamedTuple):
    """What to run.

    Attributes:
        kind: the dotted path of a function that returns the ``Work`` for an order, its lease and its memory. It raises
            if this release of the code does not know that work.
        facts: what that function needs to know. Values of the project are JSON.
        grant: the grant under which to run it, without what only the supervisor needs.
        database: where the locks are, as ``database_of_locks`` says: a process that has other settings runs nothing.
        heeds_any_signal: whether a signal ends the body even if the supervisor gives no reason to end it.
        is_last: whether the executor ends after it.
        streams: how many descriptors come with it for what it prints: 2, 1 if both streams are one, or 0.
        wakers: the descriptors that its kind of work needs, as numbers of the process that has the order.
    """

    kind: str
    facts: Mapping[str, Any]
    grant: Grant
    database: Sequence[str]
    heeds_any_signal: bool
    is_last: bool
    streams: int = 0
    wakers: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        kind: str,
        facts: Mapping[str, Any],
        lease: Lease,
        *,
        heeds_any_signal: bool,
        is_last: bool,
        wakers: Sequence[int] = (),
    ) -> "Order":
        """The order to run work of that kind under the lease."""
        grant = lease.grant
        # A retry has its slot from its one-off.
        request = grant.request._replace(policy=None, one_off=None, slot=grant.slot_of_run)
        grant = grant._replace(columns={}, before={}, request=request)
        return cls(kind, facts, grant, database_of_locks(), heeds_any_signal, is_last, wakers=wakers)


def database_of_locks() -> Sequence[str]:
    """Which database this process is connected to for its locks."""
    settings = connections[transactions.alias()].settings_dict
    return [str(settings.get(key, "")) for key in ("ENGINE", "NAME", "HOST", "PORT")]


def send(channel: socket.socket, order: Order, memory: SharedMemory, others: Sequence[int]) -> None:
    """Send the order, with its memory and other descriptors. Raises ``OSError`` if there is no memory for it, or if
    nobody receives it any more."""
    packed = pickle.dumps(order)
    # Arguments may be of any length, and a socket would not take them all at once.
    file = unnamed_file(len(packed))
    try:
        os.pwrite(file, packed, 0)
        socket.send_fds(channel, [b"\0"], [file, memory.descriptor, *order.wakers, *others])
    finally:
        os.close(file)


class Received(NamedTuple):
    """An order that has come, with the descriptors of its memory and of where to print."""

    order: Order
    memory: int
    others: Sequence[int]


def receive(channel: socket.socket) -> Received | None:
    """Wait for an order. ``None`` if there is none any more."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    said, descriptors, _, _ = socket.recv_fds(channel, 1, _MOST_DESCRIPTORS, flags)
    if not said:
        return None
    file, memory, *others = descriptors
    with open(file, "rb") as orders:  # noqa: PTH123  (it has no path)
        order: Order = pickle.load(orders)  # noqa: S301  (it comes from our own supervisor, of the same version)
    count = len(order.wakers)
    return Received(order._replace(wakers=others[:count]), memory, others[count:])
