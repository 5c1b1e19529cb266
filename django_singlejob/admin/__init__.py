"""The admin: which locks are held, what has run, what is waiting to run, and what you can do about it.

Pages are read-only. Each change is a POST, needs a permission, and is written to the admin's log.
"""

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.utils.functional import SimpleLazyObject
from django.utils.module_loading import import_string

from django_singlejob.models import JobLock, JobRun, JobStatus, OneOffJob, Overview

# Where the admin class of each model is.
ADMINS: dict[type[Model], str] = {
    JobLock: "locks.JobLockAdmin",
    JobRun: "runs.JobRunAdmin",
    JobStatus: "jobs.JobStatusAdmin",
    OneOffJob: "one_offs.OneOffJobAdmin",
    Overview: "overview.OverviewAdmin",
}


def register(site: admin.AdminSite) -> None:
    """Add the pages to an admin site of your own. They link to each other, so a site needs all of them."""
    for model, path in ADMINS.items():
        site.register(model, _later(path))


def _later(path: str) -> Any:
    """What Django takes for the admin class of this path. Its module is imported when the admin is first used, for its
    URLs or in Django's checks: every command of the project imports this package, and most of them have no pages."""

    def make(*arguments: Any) -> Any:
        return SimpleLazyObject(lambda: import_string(f"{__name__}.{path}")(*arguments))

    return make


register(admin.site)
