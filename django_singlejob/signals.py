"""The signals of this package. All are sent robustly: a receiver's error is logged and breaks no job.

As everywhere in Django, the sender is a class. It is the class that the signal is about: ``Job`` for what is about a
job, whatever the job's own class; ``Lease`` for ``lease_lost``; the model ``JobLock`` for
``lock_taken_over``. Each signal also has the argument ``name``, which is the name of the job, or of the lock if the
signal is about a lease or a lock. The name cannot be the sender, because Django compares senders by identity, and two
equal strings may be two objects.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from django.dispatch import Signal


class JobSignal(Signal):
    """In a supervisor, a thread of its own calls the receivers, one signal after the other.

    Attributes:
        leave: has such a thread send a signal; returns ``False`` if the caller must do it.
    """

    leave: ClassVar[Callable[[Callable[[], object]], bool] | None] = None

    def send_robust(self, sender: Any, **named: Any) -> list[Any]:
        send, leave = partial(super().send_robust, sender, **named), JobSignal.leave
        return [] if leave and self.has_listeners(sender) and leave(send) else send()


#: ``run`` (a ``CurrentRun``): the lock was acquired, and the job's function is about to be called.
job_started = JobSignal()

#: ``run`` (a ``CurrentRun``), ``status`` (a value of ``JobRun.Status``), ``duration`` (timedelta), ``error`` (an
#: exception or ``None``): the run has ended, and its lock is released.
job_finished = JobSignal()

#: ``reason`` (a ``Reason``): a call did not run.
job_skipped = JobSignal()

#: ``lease`` (a ``Lease``): the holder can no longer prove its right. May be sent from a thread other than the job's.
lease_lost = JobSignal()

#: ``lease`` (the new one; ``None`` if the lock was cleared), ``lock`` (the ``JobLock`` row as its former holder left
#: it): the former holder has lost its lock.
lock_taken_over = JobSignal()

#: ``until`` (a datetime or ``None``), ``reason``, ``by``: no run of the job begins until then, or until it is resumed.
job_paused = JobSignal()

#: ``by``: runs of the job may begin again.
job_resumed = JobSignal()

#: ``before``, ``after`` (each the text of a schedule and its time zone, empty if there is none), ``next_slot``,
#: ``since``: the job follows another schedule since then, or none.
schedule_changed = JobSignal()

#: ``token``, ``by``: the run of the job with this token is to end.
run_stopped = JobSignal()

#: ``slot``, ``reason`` (a ``MisfireOutcome``), ``first`` and ``count``: a slot was not run within its grace. Slots with
#: the same outcome share one signal: ``slot`` is the last of them, ``first`` the first, and ``count`` their number (for
#: a cron expression, at most 10,000 are counted).
slot_misfired = JobSignal()
