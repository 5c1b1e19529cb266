"""The admin: who holds what, what has run, what waits to be run, and what is to be done about it.

Pages only show. What changes something is a POST, needs a permission, and is written to the admin's log.
"""

from django_singlejob.admin import jobs, locks, one_offs, overview, runs

__all__ = ["jobs", "locks", "one_offs", "overview", "runs"]
