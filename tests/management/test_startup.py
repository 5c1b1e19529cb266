"""What starting up imports. A crontab starts `run_singleton` every minute, so it does without what only others need,
and every command of a project loads the app."""

import subprocess
import sys
from collections.abc import Collection

import pytest

SET_UP = """
import sys
import django
from django.conf import settings

apps = ["admin", "auth", "contenttypes", "sessions", "messages"]
settings.configure(INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "django_singlejob"])
django.setup()
"""
IMPORT = "import django_singlejob.management.commands.run_singleton"
NOTE_PATTERNS = """
import re
callers, usual = [], re.compile
def compile(pattern, flags=0):
    callers.append(sys._getframe(1).f_globals["__name__"])
    return usual(pattern, flags)
re.compile = compile
"""

DATACLASSES = """
import sys
from dataclasses import is_dataclass
modules = [module for name, module in sys.modules.items() if name.startswith("django_singlejob.")]
classes = {thing for module in modules for thing in vars(module).values() if isinstance(thing, type)}
ours = [each for each in classes if each.__module__.startswith("django_singlejob.") and is_dataclass(each)]
print("\\n".join(f"{each.__module__}.{each.__qualname__}" for each in ours))
"""
NOTE_LAZY_PLURALS = """
import sys
from django.utils import translation
callers, usual = [], translation.ngettext_lazy
def lazy_plural(*texts):
    callers.append(sys._getframe(1).f_globals["__name__"])
    return usual(*texts)
translation.ngettext_lazy = lazy_plural
"""


def output(*code: str) -> Collection[str]:
    command = [sys.executable, "-c", "\n".join(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


def ours(*code: str) -> set[str]:
    """The modules of the package that this imports, without its name."""
    package = "django_singlejob."
    loaded = output(*code, 'print("\\n".join(sys.modules))')
    return {name.removeprefix(package) for name in loaded if name.startswith(package)}


def test_the_app_imports_its_models_and_what_they_need() -> None:
    loaded = ours(SET_UP)
    assert {"apps", "models"} <= loaded
    wings = {name.partition(".")[0] for name in loaded if "." in name}
    assert wings == {"database", "jobs", "models", "process"}
    assert not loaded & {"jobs.registry", "running.runner"}
    assert len(loaded) <= 28


@pytest.mark.parametrize("name", ["admin", "monitoring", "worker"])
def test_run_singleton_imports_nothing_that_only_others_need(name: str) -> None:
    loaded = ours(SET_UP, IMPORT)
    assert "management.commands.run_singleton" in loaded
    # Django imports `admin` in every process. It registers the pages, which are imported with the URLs.
    needless = {each for each in loaded if each.startswith(f"{name}.") or (each == name and name != "admin")}
    assert not needless


def test_nor_does_it_compile_patterns_that_may_never_be_needed() -> None:
    """To mask secrets takes more than a dozen. To compile them took a tenth of the time of this import."""
    callers = output(SET_UP, NOTE_PATTERNS, IMPORT, 'print("\\n".join(callers))')
    assert not [caller for caller in callers if caller.startswith("django_singlejob")]


def test_the_records_of_the_package_are_named_tuples() -> None:
    """Defining a dataclass takes six times as long as defining a named tuple. Only those remain that are public, or
    that validate their fields."""
    pages = "import django_singlejob.admin.overview, django_singlejob.admin.locks, django_singlejob.admin.one_offs"
    found = {name.removeprefix("django_singlejob.") for name in output(SET_UP, IMPORT, pages, DATACLASSES)}
    assert found == {
        "running.enqueue.Order",
        "jobs.registry.Job",
        "running.current_run.CurrentRun",
        "running.outcomes.Outcome",
    }


def test_nor_do_the_words_for_a_schedule_define_a_class_for_each_unit() -> None:
    """A lazy text with a plural is a class of its own. Each command imports the words, and few of them say any."""
    lazies = output(NOTE_LAZY_PLURALS, SET_UP, IMPORT, 'print("\\n".join(callers))')
    assert not [caller for caller in lazies if caller.startswith("django_singlejob")]
