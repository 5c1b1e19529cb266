import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import django
from django.apps import AppConfig
from django.conf import global_settings, settings
from django.core.checks import CheckMessage, Tags, register
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from django_singlejob.process import rooms


def _check(name: str) -> Callable[..., Sequence[CheckMessage]]:
    """The system check of this name, whose module is imported when it is called. This is the one place where the app
    imports later what it may not need: every command of the project loads the app, and many run no checks."""

    def check(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> Sequence[CheckMessage]:
        found: Sequence[CheckMessage] = import_string(f"django_singlejob.monitoring.checks.{name}")(
            app_configs, **kwargs
        )
        return found

    check.__name__ = name
    return check


# Made once, because Django registers the same function only once.
CHECKS: dict[Callable[..., Sequence[CheckMessage]], Sequence[str]] = {
    _check("check_settings"): (),
    _check("check_time"): (),
    _check("check_jobs"): (),
    _check("check_database"): (),
    _check("check_logging"): (),
    _check("check_server"): (Tags.database,),
}


def _receiver(name: str) -> Callable[..., None]:
    """The receiver of this name, whose module is imported when the first run begins that has a URL to ping."""

    def receive(*, run: Any, **kwargs: Any) -> None:
        options = import_string("django_singlejob.conf.options")
        if options().ping_url if run.job.ping_url is None else run.job.ping_url:
            import_string(f"django_singlejob.integrations.{name}")(run=run, **kwargs)

    return receive


def _late(path: str, *, needs: str = "") -> Callable[..., None]:
    """The receiver at this path, whose module is imported when the signal is first sent; with ``needs``, only if that
    option is set."""

    def receive(**kwargs: Any) -> None:
        if not needs or getattr(import_string("django_singlejob.conf.options")(), needs):
            import_string(f"django_singlejob.{path}")(**kwargs)

    return receive


def _notifying(name: str) -> Callable[..., None]:
    """The receiver of this name, whose module is imported when somebody is to hear of the job."""

    def receive(**kwargs: Any) -> None:
        registry, options = (import_string(f"django_singlejob.{path}") for path in ("jobs.registry", "conf.options"))
        name_of_job = kwargs["name"]
        job = registry.get(name_of_job) if registry.is_known(name_of_job) else None
        if options().notify if job is None or job.notify is None else job.notify:
            import_string(f"django_singlejob.integrations.mails.{name}")(**kwargs)

    return receive


#: What rooms add to the kernel, by name, and where it is: imported when it is first used.
ROOMS = {
    "lane": "django_singlejob.tasks.lane.lane",
    "one_off_steps": "django_singlejob.tasks.one_offs.one_off_steps",
    "insert_unique": "django_singlejob.tasks.unique.insert_unique",
    "insert_at_once": "django_singlejob.tasks.at_once.insert_at_once",
    "grant_at_once": "django_singlejob.single_statement.grant_at_once",
    "release_at_once": "django_singlejob.single_statement.release_at_once",
    "mark": "django_singlejob.monitoring.marks.mark",
    "output_file": "django_singlejob.integrations.output_file.output_file",
    "tell": "django_singlejob.integrations.mails.tell_all",
    "send_test": "django_singlejob.integrations.mails.send_test",
}

# The signal of each. Made once, because a signal has the same receiver only once.
RECEIVERS: dict[Callable[..., None], str] = {
    _receiver("pings.ping_start"): "job_started",
    _receiver("pings.ping_end"): "job_finished",
    _late("integrations.output_file.append_traceback", needs="output_file"): "job_finished",
    _late("integrations.pings.ping_death"): "lock_taken_over",
    _notifying("tell_end"): "job_finished",
    _notifying("tell_misfire"): "slot_misfired",
    _late("control.notes.note_takeover"): "lock_taken_over",
    _late("control.notes.note_misfire"): "slot_misfired",
    _late("control.notes.note_schedule"): "schedule_changed",
}


class SingleJobConfig(AppConfig):
    name = "django_singlejob"
    verbose_name = _("Single jobs")
    default_auto_field = "django.db.models.BigAutoField"

    #: The modules that had been imported when the app was loaded: every process of the project has them.
    loaded: frozenset[str] = frozenset()

    def ready(self) -> None:
        self.loaded = frozenset(sys.modules)
        for name, path in ROOMS.items():
            rooms.add(name, path)
        for check, tags in CHECKS.items():
            register(check, *tags)
        if django.VERSION >= (6, 0) and settings.TASKS != global_settings.TASKS:
            # It registers Django's own check, which asks our backend. The project may import it too late.
            import_module("django.tasks")
        for receive, name in RECEIVERS.items():
            import_string(f"django_singlejob.signals.{name}").connect(receive)
