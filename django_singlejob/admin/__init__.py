"""The admin: which locks are held, what has run, what is waiting to run, and what you can do about it.

Pages are read-only. Each change is a POST, needs a permission, and is written to the admin's log.
"""

from django_singlejob.admin import jobs, locks, one_offs, overview, runs

__all__ = ["jobs", "locks", "one_offs", "overview", "runs"]
