"""The modules in which tasks are looked up. The path of a task, or of an exception's class, comes from a row: it never
makes a process import a module that the project has not chosen for tasks."""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from traceback import walk_tb
from types import ModuleType

from django.apps import apps

from django_singlejob.conf import options
from django_singlejob.handlers import HeldSignals
from django_singlejob.interrupt import Window
from django_singlejob.logs import about
from django_singlejob.results import summary

logger = logging.getLogger("django_singlejob")

#: The modules that were imported here; ``None`` for one that failed. It is not tried again in this process: the deploy
#: that fixes it starts another one.
_imported: dict[str, ModuleType | None] = {}


def is_allowed(path: str) -> bool:
    """Whether a row may name this dotted path: its module must be imported already, or be, or be inside, an installed
    app or a module of ``SINGLEJOB["TASK_MODULES"]``. A ``__main__`` is never allowed: importing it would run a program.
    """
    module = _module_of(path)
    return "__main__" not in module.split(".") and (module in sys.modules or is_importable(path))


def is_importable(path: str) -> bool:
    """Whether the module of this dotted path may be imported because a row names it."""
    module = _module_of(path)
    is_in_app = apps.get_containing_app_config(module) is not None
    return is_in_app or any(f"{module}.".startswith(f"{entry}.") for entry in options().task_modules)


def takes_import(path: str) -> bool:
    """Whether looking this dotted path up imports its module, which may run anything that the module does."""
    module = _module_of(path)
    return not (module in _imported or module in sys.modules) and is_allowed(path)


def is_broken(path: str) -> bool:
    """Whether importing the module of this dotted path, or a package around it, has failed in this process."""
    first = next((name for name in _from_the_top(_module_of(path)) if _imported.get(name) is None), None)
    return first in _imported


def is_there(name: str) -> bool:
    """Whether the module exists. Only the packages around it are imported."""
    package = _module_of(name)
    if package and imported(package) is None:
        return False
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # inside a module that is not a package; a module that was made by hand
        return name in sys.modules


def found_at(path: str) -> object:
    """What a module defines at this dotted path. ``None`` if it defines nothing there, or if it cannot be imported."""
    return _defined(imported(_module_of(path)), path)


def exception_at(path: str) -> type[BaseException]:
    """The exception class at this dotted path, if its module is imported already or may be imported. Like Django's
    ``TaskError``, raises ``ImportError`` if there is none, and ``ValueError`` if it is something else."""
    name = _module_of(path)
    if name not in sys.modules and not is_allowed(path):
        raise ImportError(
            f"The module of the exception {path!r} is not imported here, because it is neither in an installed app nor "
            "in SINGLEJOB['TASK_MODULES']."
        )
    found = _defined(sys.modules.get(name) or imported(name), path)
    if found is None:
        raise ImportError(f"There is no exception {path!r} here.")
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(f"{path!r} does not reference a valid exception.")  # noqa: TRY004  (as Django's TaskError)
    return found


def imported(name: str) -> ModuleType | None:
    """The module. ``None`` if it does not exist, or if importing it raises anything, even ``SystemExit``: this is
    logged once, and the module is not imported again in this process. Interrupts from outside are raised."""
    if name in _imported:
        return _imported[name]
    if not all(name.split(".")):
        return None
    if name not in sys.modules:
        # From the top: otherwise each module inside a broken package would run the package again.
        for package in _from_the_top(name):
            if _imported_alone(package) is None:
                return None
    return _imported_alone(name)


def _imported_alone(name: str) -> ModuleType | None:
    if name in _imported:
        return _imported[name]
    with Window():  # interrupts wait, so what the import raises is its own
        try:
            found: ModuleType | None = import_module(name)
        except BaseException as error:
            if _is_of_a_handler(error):
                raise
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                return None  # nothing was run
            message = (
                "The module %r cannot be imported (%s). Fix it and restart this process: until then its tasks wait."
            )
            logger.error(message, name, summary(error), exc_info=error, extra=about(reason=error))
            found = None
        _imported[name] = found
    return found


def _is_of_a_handler(error: BaseException) -> bool:
    """Whether a signal raised it: the second one is let through, so that an import that hangs can be ended."""
    return any(frame.f_code is HeldSignals.handle.__code__ for frame, _ in walk_tb(error.__traceback__))


def _defined(module: ModuleType | None, path: str) -> object:
    # Not getattr, for which a module may import another one.
    return vars(module).get(path.rpartition(".")[2]) if isinstance(module, ModuleType) else None


def _from_the_top(name: str) -> "accumulate[str]":
    """The packages around the module, and the module itself."""
    return accumulate(name.split("."), "{}.{}".format)


def _module_of(path: str) -> str:
    return path.rpartition(".")[0]
