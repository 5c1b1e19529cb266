"""What this package tells others. All are sent robustly: a receiver's error is logged and breaks no job.

The sender is a class, as everywhere in Django: of what the signal is about. For ``job_...`` and ``slot_misfired`` that
is ``Job``, whatever the job's own class; for ``lease_lost`` ``Lease``; for ``lock_taken_over`` the model ``JobLock``.
The name is an argument of each signal, ``name``: that of the job, or, where a lease or a lock is meant, of the lock. It
cannot be the sender, because Django compares senders by identity, and two strings that are equal may be two objects.
"""

from django.dispatch import Signal

#: ``run`` (a ``CurrentRun``): the lock was acquired, the job's function is about to be called.
job_started = Signal()

#: ``run`` (a ``CurrentRun``), ``status`` (a ``JobRun.Status``), ``duration`` (timedelta), ``error`` (an exception or
#: ``None``): the run has ended, its lock is released.
job_finished = Signal()

#: ``reason`` (a ``Reason``): a call did not run.
job_skipped = Signal()

#: ``lease`` (a ``Lease``): the holder can no longer prove its right. May be sent from another thread than the job's.
lease_lost = Signal()

#: ``lease`` (the new one; ``None``: it was cleared), ``lock`` (the ``JobLock`` row as its former holder left it).
lock_taken_over = Signal()

#: ``slot``, ``reason`` (a ``MisfireOutcome``), ``first`` and ``count``: a slot that nobody ran within its grace. Of
#: slots that share their outcome it is sent once, with the last one's ``slot``, the ``first`` and how many they are
#: (of a cron expression 10,000 are counted at most).
slot_misfired = Signal()
