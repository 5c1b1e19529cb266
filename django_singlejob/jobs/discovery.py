"""Importing the modules that register jobs. A module that raises takes its own jobs with it, and no others."""

import os
import sysconfig
import traceback
from importlib import import_module
from pathlib import Path

import django
from django.apps import AppConfig, apps
from django.conf import settings
from django.utils.module_loading import module_has_submodule

from django_singlejob.conf import options
from django_singlejob.exceptions import InvalidSchedule, SingleJobError
from django_singlejob.jobs import registry
from django_singlejob.process.escaping import cut

# The frames of a traceback that do not belong to the project.
_FRAMEWORK = ("<", *(str(path) + os.sep for path in (Path(__file__).parents[1], Path(str(django.__file__)).parent)))
# Those of Python itself and of installed packages.
_INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def autodiscover() -> list[Exception]:
    """Import the modules ``SINGLEJOB["AUTODISCOVER"]`` of each installed app. Returns why some are not registered:
    modules that raise, and jobs whose schedule cannot be in the project's time zone."""
    for app in apps.get_app_configs():
        for name in options().autodiscover:
            _import(app, name)
    for job in registry.all_jobs():
        try:
            _ = job.policy
        except InvalidSchedule as error:
            registry.forget(job.name)
            registry.failures[f"job {job.name}"] = InvalidSchedule(
                f"The schedule of the job {job.name!r}, {job.place}, cannot work in the project's time zone: {error}"
            )
    return [*registry.failures.values()]


def _import(app: AppConfig, name: str) -> None:
    module = f"{app.name}.{name}"
    try:
        import_module(module)
    except Exception as error:
        registry.take_back()
        if module_has_submodule(app.module, name):
            registry.failures[module] = error
    else:
        registry.failures.pop(module, None)


def why_not_registered(error: Exception) -> str:
    """What to say of an error that ``autodiscover`` returned, on one line."""
    words = " ".join(cut(f"Some jobs cannot be registered: {type(error).__name__}: {error}").split())
    return words if words.endswith((".", "?")) else f"{words}."


def remedy_for(error: Exception) -> str:
    """What to do about an error that ``autodiscover`` returned: ``Fix the error in /srv/shop/jobs.py, line 12.``"""
    if error.__traceback__ is None:  # no module has raised it
        return "Change the schedule, give the job a time_zone, or correct settings.TIME_ZONE."
    remedy = f"Fix the error in {_origin(error)}."
    if _is_about_task(error):
        return (
            f"{remedy} To make a task of a singleton job, let TASKS name its backend: "
            "{'default': {'BACKEND': 'django_singlejob.backends.SingleJobBackend'}}."
        )
    if isinstance(error, SingleJobError):
        return remedy
    return f"{remedy} If its module is not for jobs, leave that name out of SINGLEJOB['AUTODISCOVER']."


def _is_about_task(error: Exception) -> bool:
    """Whether a backend of another package refuses a task, as those of Django refuse a job."""
    # By its name: most processes have no tasks, and do not import them.
    kind = f"{type(error).__module__}.{type(error).__name__}"
    is_refusal = kind in ("django.tasks.exceptions.InvalidTask", "django_tasks.exceptions.InvalidTaskError")
    return is_refusal and "django_singlejob.backends.SingleJobBackend" not in _backends_of_tasks()


def has_tasks() -> bool:
    """Whether the project may have tasks that workers run: ``TASKS`` names a backend that is not one of Django's."""
    return any(not path.startswith(("django.", "django_tasks.")) for path in _backends_of_tasks())


def _backends_of_tasks() -> list[str]:
    # Django has this setting since 6.0. Before that, django-tasks needs none.
    return [str(given.get("BACKEND")) for given in getattr(settings, "TASKS", {}).values()]


def _origin(error: Exception) -> str:
    """Where in the project it was raised: ``/srv/shop/jobs.py, line 12``."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_FRAMEWORK)]
    # The project's own code called Python's, or that of another package. A project may be installed itself.
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    innermost = next(iter((own or frames)[-1:]), None)
    return f"{innermost.filename}, line {innermost.lineno}" if innermost else "the module that this comes from"
