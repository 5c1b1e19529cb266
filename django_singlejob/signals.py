"""What this package tells others. All are sent robustly: a receiver's error is logged and breaks no job.

Every signal's sender is the job's or the lock's name (a ``str``).
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

#: ``slot``, ``reason`` (a ``Fate``), ``first`` and ``count``: a slot that nobody ran within its grace. Of slots that
#: share their fate it is sent once, with the last one's ``slot``, the ``first`` and how many they are (of a cron
#: expression 10,000 are counted at most).
slot_misfired = Signal()
