"""Pruning: what is old is deleted, once a day on all servers together."""

from datetime import timedelta

from django_singlejob.conf import options
from django_singlejob.jobs.registry import Job
from django_singlejob.locking.recording import alone
from django_singlejob.models.one_offs import one_offs
from django_singlejob.models.runs import runs


def prune() -> str:
    """Delete runs and one-offs that are older than the settings allow."""
    alone(runs().exists)  # raises if the table is locked: a thread that waited for it would run no jobs
    age = timedelta(days=options().history_days)
    run_count = sum(rows.prune() for rows in runs().surplus(age, options().history_keep))
    return f"{run_count} runs, {one_offs().surplus(age).prune()} one-offs"


# It is not registered, so that only workers run it.
PRUNING = Job(name="django_singlejob.prune", func=prune, min_interval=timedelta(days=1), ping_url="")
