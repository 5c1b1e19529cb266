"""The modules in which tasks are looked up. The path of a task, or of an exception's class, comes from a row: it never
makes a process import a module that the project has not chosen for tasks."""

import logging
import sys
from importlib import import_module
from types import ModuleType

from django.apps import apps

from django_singlejob.locking.endings import summary
from django_singlejob.process.logs import about
from django_singlejob.process.received_signals import is_ctrl_c, without_signals

logger = logging.getLogger("django_singlejob")

#: The modules that cannot be imported. They are not tried again in this process: the deploy that fixes one starts
#: another process.
_broken: set[str] = set()


def is_allowed(path: str) -> bool:
    """Whether a row may name this dotted path: its module must be imported already, or be, or be inside, an installed
    app. A ``__main__`` is never allowed: importing it would run a program."""
    module = _module_of(path)
    return "__main__" not in module.split(".") and (module in sys.modules or is_importable(path))


def is_importable(path: str) -> bool:
    """Whether the module of this dotted path may be imported because a row names it."""
    return apps.get_containing_app_config(_module_of(path)) is not None


def takes_import(path: str) -> bool:
    """Whether looking this dotted path up imports its module, which may run anything that the module does."""
    module = _module_of(path)
    return not (module in _broken or module in sys.modules) and is_allowed(path)


def is_broken(path: str) -> bool:
    """Whether importing the module of this dotted path has failed in this process."""
    return _module_of(path) in _broken


def found_at(path: str) -> object:
    """What a module defines at this dotted path. ``None`` if it defines nothing there, or if it cannot be imported."""
    module = imported(_module_of(path))
    # Not getattr, for which a module may import another one.
    return vars(module).get(path.rpartition(".")[2]) if module else None


def exception_at(path: str) -> type[BaseException]:
    """The exception class at this dotted path, if its module is imported already or may be imported. Like Django's
    ``TaskError``, raises ``ImportError`` if there is none, and ``ValueError`` if it is something else."""
    found = found_at(path) if is_allowed(path) else None
    if found is None:
        raise ImportError(f"No exception {path!r} was found. Is its module in an installed app, or imported?")
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(f"{path!r} does not reference a valid exception.")  # noqa: TRY004  (as Django's TaskError)
    return found


def imported(name: str) -> ModuleType | None:
    """The module. ``None`` if it does not exist, or if importing it raises anything, even ``SystemExit``: this is
    logged once, and the module is not imported again in this process. Interrupts from outside are raised."""
    if name in _broken or not all(name.split(".")):
        return None
    with without_signals():  # so that what the import raises is its own
        try:
            return import_module(name)
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
                return None  # nothing was run
            message = (
                "The module %r cannot be imported (%s). Fix it and restart this process: until then its tasks wait."
            )
            logger.error(message, name, summary(error), exc_info=error, extra=about(reason=error))
            _broken.add(name)
            return None


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]
